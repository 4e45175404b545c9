//! Credential helpers of docker: `docker-credential-NAME get`, with the registry on standard input.

use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a helper, which may ask a service.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Time between two looks at a helper.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Longest answer of a helper. Unit: bytes.
const ANSWER_MAX: u64 = 1 << 20;

/// Name of a helper for a registry in a configuration of docker. `None` if it names none.
pub(super) fn name<'a>(file: &'a Value, registry: &str) -> Option<&'a str> {
    let name = file["credHelpers"][registry].as_str();
    let name = name.or_else(|| file["credsStore"].as_str());
    // It becomes a part of the name of a program.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.filter(|name| !name.is_empty() && name.chars().all(is_plain))
}

/// User name and secret that a helper has for a registry. `None` if it has none.
///
/// # Errors
/// One sentence without what the helper printed.
pub(super) fn get(name: &str, registry: &str) -> Result<Option<(String, String)>, String> {
    let program = format!("docker-credential-{name}");
    let failed = |what: &dyn std::fmt::Display| format!("{program}: {what}");
    let mut command = Command::new(&program);
    command
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let child = command.stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|e| failed(&e))?;
    if let Some(mut input) = child.stdin.take() {
        // A helper that does not read fails by itself.
        let _ = input.write_all(registry.as_bytes());
    }
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut answer = Vec::new();
        // An answer that is cut is no JSON.
        let _ = output.map(|output| output.take(ANSWER_MAX).read_to_end(&mut answer));
        answer
    });
    let is_success = wait(&mut child).map_err(|what| failed(&what))?;
    let answer = reader.join().unwrap_or_default();
    if !is_success {
        let is_absent = String::from_utf8_lossy(&answer).contains("credentials not found");
        return match is_absent {
            true => Ok(None),
            false => Err(failed(
                &"it has no login for the registry, and ended with an error",
            )),
        };
    }
    let object: Value = serde_json::from_slice(&answer).unwrap_or_default();
    match (object["Username"].as_str(), object["Secret"].as_str()) {
        (Some(user), Some(secret)) => Ok(Some((user.to_owned(), secret.to_owned()))),
        _ => Err(failed(&"its answer has no user name and secret")),
    }
}

/// Waits for the end of a helper. Returns true if it was a success.
fn wait(child: &mut Child) -> Result<bool, String> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if start.elapsed() < TIMEOUT => std::thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                // It may have ended in between.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer after {} s", TIMEOUT.as_secs()));
            }
            Err(e) => return Err(e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_helper_of_a_registry_counts_before_the_store_for_all() {
        let file = json!({"credHelpers": {"r:5": "one"}, "credsStore": "all"});
        assert_eq!(name(&file, "r:5"), Some("one"));
        assert_eq!(name(&file, "s"), Some("all"));
        assert_eq!(name(&json!({}), "s"), None);
        for bad in ["", "../x", "a/b", "a b"] {
            assert_eq!(name(&json!({"credsStore": bad}), "s"), None, "{bad}");
        }
    }

    #[test]
    fn a_helper_that_is_absent_is_an_error_with_its_name() {
        let e = get("tuff-test-has-no-such-helper", "r").unwrap_err();
        assert!(
            e.starts_with("docker-credential-tuff-test-has-no-such-helper: "),
            "{e}"
        );
    }
}
