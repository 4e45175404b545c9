//! Log of a mount. Equal lines are written once, so that repeated reads of a damaged file do not fill a disk.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of different lines that are remembered.
const REMEMBERED: usize = 1024;

/// Log shared by all threads. Cheap to clone.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    sink: Box<dyn Fn(&str) + Send + Sync>,
    message: Mutex<HashSet<String>>,
}

impl Log {
    /// Creates a log that passes each line, without a newline, to `sink`.
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            sink: Box::new(sink),
            message: Mutex::default(),
        }))
    }

    /// Creates a log that discards all lines.
    pub fn none() -> Self {
        Self::new(|_| ())
    }

    /// Writes a line, unless an equal one was written before.
    pub fn line(&self, line: impl Display) {
        let line = line.to_string();
        {
            let mut message = self
                .0
                .message
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if message.contains(&line) {
                return;
            }
            if message.len() >= REMEMBERED {
                message.clear();
            }
            message.insert(line.clone());
        }
        (self.0.sink)(&line);
    }

    /// Writes a line even if an equal one was written before.
    pub fn again(&self, line: impl Display) {
        (self.0.sink)(&line.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lines_are_written_once_in_bounded_memory() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        let log = Log::new(move |line| sink.lock().unwrap().push(line.to_owned()));
        for _ in 0..3 {
            log.line("damage at 4");
        }
        log.again("damage at 4");
        assert_eq!(*lines.lock().unwrap(), ["damage at 4", "damage at 4"]);
        for i in 0..5000 {
            log.line(i);
        }
        assert!(log.0.message.lock().unwrap().len() <= REMEMBERED);
        assert_eq!(lines.lock().unwrap().len(), 5002);
    }
}
