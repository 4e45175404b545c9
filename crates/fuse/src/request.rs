//! Decoder of requests: bytes become a header and an [`Operation`], once.

use crate::fields::Fields;
use crate::filesystem::{Node, Result, Seek};
use crate::protocol::*;
use crate::transport::replies::PendingReply;
use rustix::io::Errno;
use zerocopy::FromBytes;

/// Request of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Common header of all requests.
    pub header: InHeader,
    /// Operation with its arguments, or EINVAL for a request that is cut short or states what the protocol does not have.
    pub operation: Result<Operation<'a>>,
    /// Slot of the request in the rings. None for requests from the device.
    pub slot: Option<usize>,
}

/// Operation of a request: the kernel's structure for it, if there is one, then names and data.
#[allow(missing_docs, reason = "the names are the kernel's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    Lookup(&'a [u8]),
    Forget(u64),
    BatchForget(&'a [ForgetOne]),
    /// True if the kernel states an open file: before a buffered write while attributes are stale.
    Getattr(bool),
    Statx(StatxIn),
    Setattr(SetattrIn),
    Readlink,
    /// New name, and the target of the symlink.
    Symlink(&'a [u8], &'a [u8]),
    Mknod(MknodIn, &'a [u8]),
    Mkdir(MkdirIn, &'a [u8]),
    Unlink(&'a [u8]),
    Rmdir(&'a [u8]),
    /// RENAME or RENAME2, with the old name and the new one.
    Rename(Rename2In, &'a [u8], &'a [u8]),
    /// Node that exists, and its new name.
    Link(Node, &'a [u8]),
    Read(ReadIn),
    Write(WriteIn, &'a [u8]),
    Statfs,
    /// RELEASE or RELEASEDIR.
    Release,
    /// FSYNC or FSYNCDIR.
    Fsync,
    /// Fields, name and value of an attribute.
    Setxattr(SetxattrIn, &'a [u8], &'a [u8]),
    /// Size of the client's buffer, and the name of the attribute.
    Getxattr(u32, &'a [u8]),
    /// Size of the client's buffer; 0 requests the length.
    Listxattr(u32),
    Removexattr(&'a [u8]),
    /// Version of the kernel, and all of its features.
    Init(InitIn, u64),
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Create(CreateIn, &'a [u8]),
    Tmpfile(CreateIn),
    Interrupt,
    Destroy,
    Ioctl(IoctlIn, &'a [u8]),
    Fallocate(FallocateIn),
    /// Offset and target of a search.
    Lseek(u64, Seek),
    Syncfs,
    /// Operation that no service here serves, such as OPEN. After ENOSYS the kernel sends some of these only once, and treats
    /// them as successful.
    Other,
}

/// User that the kernel states on a mount that allows mapped owners, for requests that create nothing.
pub const NO_USER: u32 = u32::MAX;

impl<'a> Request<'a> {
    /// Decodes the bytes of a request of the device. Returns None if they are not exactly one request.
    ///
    /// `features` are the [negotiated](crate::negotiation::Negotiation::features) ones.
    pub fn new(bytes: &'a [u8], features: u64) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        let fields = Fields(body, &[]);
        (header.len as usize == bytes.len()).then(|| Self::decode(header, fields, features, None))
    }

    pub(crate) fn decode(
        header: InHeader,
        fields: Fields<'a>,
        features: u64,
        slot: Option<usize>,
    ) -> Self {
        Self {
            header,
            operation: Operation::decode(header.opcode, fields, features),
            slot,
        }
    }

    /// Returns the identification with which the reply is sent later.
    pub fn pending(&self) -> PendingReply {
        PendingReply {
            unique: self.header.unique,
            slot: self.slot,
        }
    }

    /// Returns true if root sent the request.
    pub fn is_by_root(&self) -> bool {
        self.user() == Some(0)
    }

    /// Returns the user with whose rights the request was sent. None if that is unknown here.
    pub fn user(&self) -> Option<u32> {
        self.user_and_group().map(|(user, _)| user)
    }

    /// Returns the user and the group with whose rights the request was sent. None if they are unknown here.
    ///
    /// Where owners may be mapped, only requests that make an inode carry its owner.
    pub fn user_and_group(&self) -> Option<(u32, u32)> {
        match self.header.uid {
            NO_USER => filesystem_ids(self.header.pid),
            uid => Some((uid, self.header.gid)),
        }
    }
}

/// Returns the user and the group whose rights to files a process has. `None` for a process that this one cannot see.
fn filesystem_ids(pid: u32) -> Option<(u32, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let id = |kind: &str| {
        let ids = status.lines().find_map(|line| line.strip_prefix(kind))?;
        ids.split_whitespace().nth(3)?.parse().ok()
    };
    Some((id("Uid:")?, id("Gid:")?))
}

impl<'a> Operation<'a> {
    fn decode(opcode: u32, mut f: Fields<'a>, features: u64) -> Result<Self> {
        Ok(match opcode {
            op::LOOKUP => Self::Lookup(f.name()?),
            op::FORGET => Self::Forget(f.structure()?),
            op::BATCH_FORGET => {
                let [count, _]: [u32; 2] = f.structure()?;
                Self::BatchForget(f.list(count)?)
            }
            op::GETATTR => {
                let [flags, _]: [u32; 2] = f.structure()?;
                Self::Getattr(flags & GETATTR_FH != 0)
            }
            op::STATX => Self::Statx(f.structure()?),
            op::SETATTR => Self::Setattr(f.structure()?),
            op::READLINK => Self::Readlink,
            op::SYMLINK => Self::Symlink(f.name()?, f.name()?),
            op::MKNOD => Self::Mknod(f.structure()?, f.name()?),
            op::MKDIR => Self::Mkdir(f.structure()?, f.name()?),
            op::UNLINK => Self::Unlink(f.name()?),
            op::RMDIR => Self::Rmdir(f.name()?),
            op::RENAME => {
                let new_dir = f.structure()?;
                let rename = Rename2In {
                    new_dir,
                    ..Rename2In::default()
                };
                Self::Rename(rename, f.name()?, f.name()?)
            }
            op::RENAME2 => Self::Rename(f.structure()?, f.name()?, f.name()?),
            op::LINK => Self::Link(f.structure()?, f.name()?),
            op::READ => Self::Read(f.structure()?),
            op::WRITE => {
                let write: WriteIn = f.structure()?;
                Self::Write(write, f.bytes(write.size)?)
            }
            op::STATFS => Self::Statfs,
            op::RELEASE | op::RELEASEDIR => Self::Release,
            op::FSYNC | op::FSYNCDIR => Self::Fsync,
            op::SETXATTR => {
                let mut set = SetxattrIn::default();
                [set.size, set.flags] = f.structure()?;
                if features & init::SETXATTR_EXT != 0 {
                    [set.setxattr_flags, set.padding] = f.structure()?;
                }
                Self::Setxattr(set, f.name()?, f.bytes(set.size)?)
            }
            op::GETXATTR => {
                let get: GetxattrIn = f.structure()?;
                Self::Getxattr(get.size, f.name()?)
            }
            op::LISTXATTR => {
                let get: GetxattrIn = f.structure()?;
                Self::Listxattr(get.size)
            }
            op::REMOVEXATTR => Self::Removexattr(f.name()?),
            op::INIT => {
                let init: InitIn = f.structure()?;
                let mut features = u64::from(init.flags);
                if features & init::INIT_EXT != 0 {
                    features |= u64::from(f.structure::<u32>()?) << 32;
                }
                Self::Init(init, features)
            }
            op::READDIR => Self::Readdir(f.structure()?),
            op::READDIRPLUS => Self::Readdirplus(f.structure()?),
            op::CREATE => Self::Create(f.structure()?, f.name()?),
            op::TMPFILE => Self::Tmpfile(f.structure()?),
            op::INTERRUPT => Self::Interrupt,
            op::DESTROY => Self::Destroy,
            op::IOCTL => Self::Ioctl(f.structure()?, f.bytes_left()),
            op::FALLOCATE => Self::Fallocate(f.structure()?),
            op::LSEEK => {
                let seek: LseekIn = f.structure()?;
                let what = match seek.whence {
                    SEEK_DATA => Seek::Data,
                    SEEK_HOLE => Seek::Hole,
                    _ => return Err(Errno::INVAL),
                };
                Self::Lseek(seek.offset, what)
            }
            op::SYNCFS => Self::Syncfs,
            _ => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// Decodes a request as the device and as a ring delivers it.
    fn decode(opcode: u32, head: &[u8], data: &[u8]) -> [String; 2] {
        let whole = [head, data].concat();
        [Fields(&whole, &[]), Fields(head, data)].map(|fields| {
            let operation = Operation::decode(opcode, fields, init::SETXATTR_EXT);
            format!("{operation:?}")
        })
    }

    #[test]
    fn fields_are_found_and_requests_that_are_cut_short_are_refused() {
        const LONGS: [u64; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
        const INTS: [u32; 10] = [3, 2, 1, 4, SEEK_HOLE, 6, 7, 8, 9, 10];
        let longs = |n: usize| LONGS[..n].as_bytes();
        let ints = |n: usize| INTS[..n].as_bytes();
        let init = [7u32, 40, 9, 1 << 30 | 1, 1 << 9];
        for (opcode, head, data, requested) in [
            (op::FORGET, longs(1), "", "Forget(1)"),
            (op::LOOKUP, &[], "a\0", "Lookup([97])"),
            (op::UNLINK, &[], "a\0", "Unlink([97])"),
            (op::RMDIR, &[], "a\0", "Rmdir([97])"),
            (op::REMOVEXATTR, &[], "a\0", "Removexattr([97])"),
            (op::SYMLINK, &[], "a\0b\0", "Symlink([97], [98])"),
            (op::LINK, longs(1), "a\0", "Link(1, [97])"),
            (
                op::MKNOD,
                ints(4),
                "a\0",
                "Mknod(MknodIn { mode: 3, rdev: 2, umask: 1, padding: 4 }, [97])",
            ),
            (
                op::MKDIR,
                ints(2),
                "a\0",
                "Mkdir(MkdirIn { mode: 3, umask: 2 }, [97])",
            ),
            (
                op::CREATE,
                ints(4),
                "a\0",
                "Create(CreateIn { flags: 3, mode: 2, umask: 1, open_flags: 4 }, [97])",
            ),
            (
                op::TMPFILE,
                ints(4),
                "",
                "Tmpfile(CreateIn { flags: 3, mode: 2, umask: 1, open_flags: 4 })",
            ),
            (
                op::RENAME,
                longs(1),
                "a\0b\0",
                "Rename(Rename2In { new_dir: 1, flags: 0, padding: 0 }, [97], [98])",
            ),
            (
                op::RENAME2,
                longs(2),
                "a\0b\0",
                "Rename(Rename2In { new_dir: 1, flags: 2, padding: 0 }, [97], [98])",
            ),
            (
                op::SETXATTR,
                ints(4),
                "a\0abc",
                "Setxattr(SetxattrIn { size: 3, flags: 2, setxattr_flags: 1, padding: 4 }, [97], [97, 98, 99])",
            ),
            (op::GETXATTR, ints(2), "a\0", "Getxattr(3, [97])"),
            (op::LISTXATTR, ints(2), "", "Listxattr(3)"),
            (op::LSEEK, ints(6), "", "Lseek(17179869185, Hole)"),
            (
                op::INIT,
                init.as_bytes(),
                "",
                "Init(InitIn { major: 7, minor: 40, max_readahead: 9, flags: 1073741825 }, 2200096997377)",
            ),
            (
                op::FALLOCATE,
                longs(4),
                "",
                "Fallocate(FallocateIn { fh: 1, offset: 2, length: 3, mode: 4, padding: 0 })",
            ),
        ] {
            let requested = format!("Ok({requested})");
            assert_eq!(decode(opcode, head, data.as_bytes()), [&*requested; 2]);
            let whole = [head, data.as_bytes()].concat();
            for len in 0..whole.len() {
                let [cut, _] = decode(opcode, &whole[..len], &[]);
                assert!(cut.starts_with("Err(Os { code: 22,"), "{opcode}: {cut}");
            }
        }
        let write = WriteIn {
            size: 3,
            ..WriteIn::default()
        };
        let [written, _] = decode(op::WRITE, write.as_bytes(), b"abc");
        assert!(written.ends_with(", [97, 98, 99]))"), "{written}");
        let [set, _] = decode(op::SETATTR, longs(11), &[]);
        assert!(
            set.contains("seconds: [5, 6, 7], nanoseconds: [8, 0, 9], mode: 0"),
            "{set}"
        );
        let [forgets, _] = decode(op::BATCH_FORGET, [2u32, 0].as_bytes(), longs(5));
        assert_eq!(
            forgets,
            "Ok(BatchForget([ForgetOne { node: U64(1), lookups: U64(2) }, ForgetOne { node: U64(3), lookups: U64(4) }]))"
        );
        let [too_many, _] = decode(op::BATCH_FORGET, [u32::MAX, 0].as_bytes(), longs(5));
        assert!(too_many.starts_with("Err"));
        let neither = [0, 0, 0, 0, 9, 0u32];
        assert!(decode(op::LSEEK, neither.as_bytes(), &[])[0].starts_with("Err"));
    }

    #[test]
    fn arbitrary_requests_are_decoded_or_refused() {
        let mut random = tuff_testkit::Rng::new(3);
        for opcode in 0..60 {
            for _ in 0..500 {
                let mut bytes = || -> Vec<u8> {
                    let len = random.below_u64(100);
                    let byte = |_| match random.below_u64(3) {
                        0 => random.draw() as u8,
                        n => n as u8 - 1,
                    };
                    (0..len).map(byte).collect()
                };
                let (head, data) = (bytes(), bytes());
                let decoded = Operation::decode(opcode, Fields(&head, &data), random.draw());
                assert!(!matches!(decoded, Err(e) if e != Errno::INVAL));
            }
        }
    }

    #[test]
    fn bytes_are_exactly_one_request() {
        let header = InHeader {
            len: 56,
            opcode: op::GETATTR,
            ..InHeader::default()
        };
        let mut bytes = [header.as_bytes(), &[0; 16]].concat();
        assert!(Request::new(&bytes, 0).is_some());
        for len in 0..bytes.len() {
            assert!(Request::new(&bytes[..len], 0).is_none(), "{len}");
        }
        bytes.push(0);
        assert!(Request::new(&bytes, 0).is_none());
    }
}
