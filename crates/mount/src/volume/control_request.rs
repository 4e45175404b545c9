//! Names of the attributes that stand for requests of `tuff volume` to a server.

/// Start of the attributes' names. The kernel checks no permission for this namespace, and passes it on. They are not
/// listed.
pub(super) const CONTROL_PREFIX: &[u8] = b"system.tuff.";

/// Change of a mounted volume that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Make all earlier changes durable.
    Sync,
    /// Report whether the server accepts changes.
    Writable,
    /// Create the snapshot of this name.
    CreateSnapshot(String),
    /// Delete the snapshot of this name.
    DeleteSnapshot(String),
    /// Fork the present state or a snapshot of the volume.
    Fork {
        /// Name of the fork.
        name: String,
        /// Snapshot to fork. None for the present state.
        snapshot: Option<String>,
    },
}

impl Control {
    /// Returns the name of the attribute that stands for the request. None if a name of the request has a `/`, so that it names
    /// nothing.
    pub fn attribute(&self) -> Option<String> {
        let prefix = String::from_utf8_lossy(CONTROL_PREFIX);
        let (verb, names) = match self {
            Self::Sync => ("sync", [None, None]),
            Self::Writable => ("writable", [None, None]),
            Self::CreateSnapshot(name) => ("snapshot.create", [Some(name), None]),
            Self::DeleteSnapshot(name) => ("snapshot.delete", [Some(name), None]),
            Self::Fork { name, snapshot } => ("fork", [Some(name), snapshot.as_ref()]),
        };
        let mut attribute = format!("{prefix}{verb}");
        for name in names.into_iter().flatten() {
            if name.contains('/') {
                return None;
            }
            attribute.push('/');
            attribute.push_str(name);
        }
        Some(attribute)
    }

    /// Parses the name of an attribute.
    pub(super) fn parse(attribute: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(attribute.strip_prefix(CONTROL_PREFIX)?).ok()?;
        let mut parts = text.split('/').map(str::to_owned);
        let verb = parts.next()?;
        let (first, second) = (parts.next(), parts.next());
        match (&*verb, first, second, parts.next()) {
            ("sync", None, None, None) => Some(Self::Sync),
            ("writable", None, None, None) => Some(Self::Writable),
            ("snapshot.create", Some(name), None, None) => Some(Self::CreateSnapshot(name)),
            ("snapshot.delete", Some(name), None, None) => Some(Self::DeleteSnapshot(name)),
            ("fork", Some(name), snapshot, None) => Some(Self::Fork { name, snapshot }),
            _ => None,
        }
    }

    /// Returns the exit code and the sentence in the reply of a server.
    pub fn outcome(reply: &[u8]) -> Option<(u8, String)> {
        let (code, text) = reply.split_first()?;
        let code = code.checked_sub(b'0').filter(|code| *code < 10)?;
        Some((code, String::from_utf8_lossy(text).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_names_of_attributes() {
        let fork = |snapshot: Option<&str>| Control::Fork {
            name: "a".to_owned(),
            snapshot: snapshot.map(str::to_owned),
        };
        for control in [
            Control::Sync,
            Control::Writable,
            Control::CreateSnapshot("friday".to_owned()),
            Control::DeleteSnapshot("fri.day".to_owned()),
            fork(None),
            fork(Some("friday")),
        ] {
            let name = control.attribute().unwrap();
            assert_eq!(Control::parse(name.as_bytes()), Some(control), "{name}");
        }
        // `a/b` is not the snapshot `b`.
        for control in [
            Control::CreateSnapshot("a/b".to_owned()),
            Control::Fork {
                name: "a/b".to_owned(),
                snapshot: None,
            },
        ] {
            assert_eq!(control.attribute(), None, "{control:?}");
        }
        for other in ["sync/a", "fork", "fork/a/b/c", "snapshot.create", "", "x/y"] {
            let name = [CONTROL_PREFIX, other.as_bytes()].concat();
            assert_eq!(Control::parse(&name), None, "{other:?}");
        }
        assert_eq!(Control::parse(b"user.sync"), None);
        assert_eq!(Control::outcome(b"0"), Some((0, String::new())));
        assert_eq!(Control::outcome(b"2no"), Some((2, "no".to_owned())));
        assert_eq!(Control::outcome(b"x"), None);
        assert_eq!(Control::outcome(b""), None);
    }
}
