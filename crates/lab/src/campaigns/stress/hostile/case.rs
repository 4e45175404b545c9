//! Case of a campaign: one verb, and what must hold after it.

use super::super::program::Ran;
use super::faults::Source;
use super::world::{
    ACCESS, KEY, Login, PASSWORD, Plan, QUERY, REFRESH, SECRET_KEY, SESSION, URL_PASSWORD, World,
};
use crate::measure::helper;
use crate::{At, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Number of verbs that read an image.
pub(super) const VERBS: usize = 6;

/// Time for a verb with its default limits, and with a deadline of a second.
const TIME_MAX: Duration = Duration::from_secs(150);
const TIME_MAX_SHORT: Duration = Duration::from_secs(40);

/// Longest message. Unit: bytes.
const MESSAGE_MAX: usize = 2000;

/// Tested program, and what it should print.
pub(super) struct Program {
    pub(super) tuff: PathBuf,
    /// Content of the files `data` and `hello`.
    pub(super) content: Vec<u8>,
    /// Path of the image.
    pub(super) image: PathBuf,
}

/// One run of a verb.
pub(super) struct Case<'a> {
    pub(super) name: String,
    pub(super) plan: Plan,
    pub(super) verb: usize,
    pub(super) is_random: bool,
    pub(super) world: &'a World,
    pub(super) program: &'a Program,
    pub(super) folder: &'a Path,
}

/// Result of a run.
pub(super) struct Done {
    pub(super) name: String,
    /// Exit code, -1 for a signal or a run without an end.
    pub(super) code: i32,
    /// Peak of resident memory. Unit: KiB.
    pub(super) memory: u64,
    /// Bytes in which secrets were looked for.
    pub(super) searched: u64,
    pub(super) finding: Option<String>,
}

/// Verbs that meet a row of the table: the first, and one of the others.
pub(super) fn verbs_of_row(row: usize) -> impl Iterator<Item = usize> {
    [0, 1 + row % (VERBS - 1)].into_iter()
}

impl Case<'_> {
    pub(super) fn run(self) -> Result<Done> {
        self.world.play(&self.plan);
        let args = self.args();
        let (ran, memory) = self.output(&args)?;
        let code = ran.status.and_then(|status| status.code());
        let mut searched = 0;
        let mut wrong = self.judge(&ran, code);
        for (host, bytes, secrets) in self.received() {
            searched += bytes.len() as u64;
            for secret in secrets {
                if contains(&bytes, secret.as_bytes()) {
                    wrong.push(format!("{host} received {secret}"));
                }
            }
        }
        searched += (ran.output.len() + ran.errors.len()) as u64;
        for secret in secrets() {
            if contains(&ran.output, secret.as_bytes()) || contains(&ran.errors, secret.as_bytes())
            {
                wrong.push(format!("the output has {secret}"));
            }
        }
        let finding = (!wrong.is_empty()).then(|| {
            let message = String::from_utf8_lossy(&ran.errors);
            let message: String = message.escape_debug().take(500).collect();
            let (name, wrong) = (&self.name, wrong.join("; "));
            format!("{name}: tuff {}: {wrong}: {message}", args.join(" "))
        });
        Ok(Done {
            name: self.name,
            code: code.unwrap_or(-1),
            memory,
            searched,
            finding,
        })
    }

    fn args(&self) -> Vec<String> {
        let url = self.world.url(self.plan.source());
        let words: &[&str] = match (self.plan.source(), self.verb) {
            (source, _) if source.is_upload() => &["push", "-q", "IMAGE", "URL"],
            (_, 0) => &["cat", "URL", "data", "hello"],
            (_, 1) => &["info", "URL"],
            (_, 2) => &["check", "-q", "URL"],
            (_, 3) => &["ls", "-R", "URL"],
            (_, 4) => &["pull", "-q", "URL", "copy"],
            _ => &["tar", "URL", "-"],
        };
        let words = words.iter().map(|word| match *word {
            "URL" => url.clone(),
            "IMAGE" => self.program.image.display().to_string(),
            word => word.to_owned(),
        });
        let mut words: Vec<String> = words.collect();
        // Servers may serve what they like, unless the root is known.
        let is_upload = self.plan.source().is_upload();
        let has_root = self.is_random || self.plan.source() != Source::Registry;
        if has_root && !is_upload {
            words.extend(["--root-hash".to_owned(), self.world.image.root.clone()]);
        }
        if self.is_random {
            let option = match is_upload {
                true => "--timeout",
                false => "--fetch-timeout",
            };
            words.extend([option, "1"].map(str::to_owned));
        }
        words
    }

    fn output(&self, args: &[String]) -> Result<(Ran, u64)> {
        let host = self.world.first.host();
        let login = match self.plan.login {
            Login::None => "{}".to_owned(),
            Login::Password => {
                format!(r#"{{"auths":{{"{host}":{{"username":"user","password":"{PASSWORD}"}}}}}}"#)
            }
            Login::Refresh => {
                format!(r#"{{"auths":{{"{host}":{{"identitytoken":"{REFRESH}"}}}}}}"#)
            }
        };
        let file = self.folder.join("login.json");
        fs::write(&file, login).at("write", &file)?;
        let mut command = Command::new(&self.program.tuff);
        command
            .args(args)
            .current_dir(self.folder)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", self.folder)
            .env("REGISTRY_AUTH_FILE", &file)
            .env("AWS_ENDPOINT_URL", format!("http://{host}"))
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("AWS_SESSION_TOKEN", SESSION);
        let limit = match self.is_random {
            true => TIME_MAX_SHORT,
            false => TIME_MAX,
        };
        let mut memory = 0;
        let watch = |process| {
            let now = peak(process, &self.program.tuff);
            memory = now.unwrap_or(0).max(memory);
        };
        let command = command.stdin(Stdio::null());
        let ended = helper::finish(command, limit, |_| None, watch);
        Ok((ended.at("run", &self.program.tuff)?, memory))
    }

    /// Findings of a run.
    fn judge(&self, ran: &Ran, code: Option<i32>) -> Vec<String> {
        let mut wrong: Vec<String> = ran.fault().into_iter().collect();
        let text = String::from_utf8_lossy(&ran.errors);
        let lines = text.lines().count();
        let is_found = code == Some(1) && self.verb == 2;
        if code > Some(0) && !is_found && lines != 1 {
            wrong.push(format!("{lines} lines of messages"));
        }
        let is_control = |c: char| c.is_control() && c != '\n';
        if text.chars().any(is_control) || text.len() > MESSAGE_MAX {
            wrong.push("the message is not one sentence".to_owned());
        }
        let must_succeed = !self.is_random && self.plan.faults.iter().all(|fault| fault.is_right);
        if must_succeed && code != Some(0) {
            wrong.push("it fails, although the server is right".to_owned());
        }
        let is_upload = self.plan.source().is_upload();
        if code == Some(0) && !is_upload {
            let is_same = match self.verb {
                0 => ran.output == self.program.content,
                4 => {
                    fs::read(self.folder.join("copy")).ok().as_ref()
                        == Some(&self.world.image.bytes)
                }
                _ => true,
            };
            if !is_same {
                wrong.push("wrong bytes".to_owned());
            }
        }
        wrong
    }

    /// Hosts, what they received, and the secrets that they must not know.
    fn received(&self) -> Vec<(&'static str, Vec<u8>, Vec<&'static str>)> {
        let world = self.world;
        let of_registry = [PASSWORD, REFRESH, ACCESS];
        let mut of_port = secrets();
        if self.plan.has_service() {
            of_port.retain(|secret| !of_registry.contains(secret) && *secret != BASIC);
        }
        let [other, port] = [&world.other, &world.port].map(|origin| origin.received());
        vec![
            ("the other host", other, secrets()),
            ("the other port", port, of_port),
            // Nobody sees the key that signs.
            ("the server", world.first.received(), vec![SECRET_KEY]),
        ]
    }
}

/// User and password of the registry in Base64.
const BASIC: &str = "dXNlcjpwd1BBU1NXT1JEcHc3MzUx";

/// User and password of the URL in Base64.
const URL_BASIC: &str = "dXNlcjp1cFVSTFBBU1NXT1JEdXA1NTM1";

fn secrets() -> Vec<&'static str> {
    vec![
        PASSWORD,
        BASIC,
        REFRESH,
        ACCESS,
        QUERY,
        URL_PASSWORD,
        URL_BASIC,
        KEY,
        SECRET_KEY,
        SESSION,
        "X-Amz-Signature",
    ]
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Peak of the resident memory of a process since it runs `program`. `None` before that, when it has the memory of the
/// process that started it, which getrusage(2) would count. Unit: KiB.
fn peak(process: u32, program: &Path) -> Option<u64> {
    let runs = fs::read_link(format!("/proc/{process}/exe")).ok()?;
    if runs != program.canonicalize().ok()? {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}
