//! Paths affected by a warning: the first few by name, the rest as a number.

use crate::source::error::Quoted;
use std::fmt;

/// Maximum number of paths to name.
const NAMED_MAX: usize = 5;

/// Paths in the order in which they were added. The root is shown as `.`.
#[derive(Clone, Debug, Default)]
pub(crate) struct AffectedPaths {
    named: Vec<Vec<u8>>,
    count: u64,
}

impl AffectedPaths {
    /// Counts a path. `path` is called only if it is to be named.
    pub(crate) fn add(&mut self, path: impl FnOnce() -> Vec<u8>) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            let path = path();
            self.named
                .push(if path.is_empty() { b".".to_vec() } else { path });
        }
    }

    /// Warning `what` about the paths; `None` if there are none.
    pub(crate) fn warning(&self, what: impl fmt::Display) -> Option<String> {
        (self.count > 0).then(|| format!("{self}: {what}"))
    }
}

impl fmt::Display for AffectedPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, path) in self.named.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{}", Quoted(path))?;
        }
        match self.count - self.named.len() as u64 {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_paths_are_named_and_the_others_counted() {
        let mut tally = AffectedPaths::default();
        assert_eq!(tally.warning("x"), None);
        tally.add(|| b"a\n".to_vec());
        assert_eq!(tally.warning("odd").unwrap(), "\"a\\n\": odd");
        for i in 0..6 {
            tally.add(|| vec![b'b' + i]);
        }
        assert_eq!(
            tally.to_string(),
            "\"a\\n\", \"b\", \"c\", \"d\", \"e\" and 2 more"
        );
    }
}
