//! Results of tests, and the list of what is expected of them.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The test ended as it should.
    Passed,
    /// The test failed, or did not end.
    Failed,
    /// The test found that its conditions are not met.
    NotRun,
}

/// Result of a test, with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestResult {
    /// Name, such as `generic/001`.
    pub name: String,
    /// Result, as judged by the suite itself.
    pub result: Outcome,
    /// Time of the test with its preparation and checks. Unit: seconds.
    pub seconds: u64,
    /// Why the test failed or did not run: one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl TestResult {
    /// Reads what `check` printed of one test. `passed` is whether it ended with 0.
    pub(super) fn parse(name: &str, printed: &str, passed: bool, seconds: u64) -> Self {
        let line = printed.lines().find_map(|line| line.strip_prefix(name));
        // The time of the last run comes first.
        let line = line.map(|line| line.rsplit_once(" ... ").map_or(line, |(_, rest)| rest));
        let line = line.map(str::trim);
        let (result, reason) = match line {
            Some(line) if line.starts_with("[not run]") => {
                let reason = line["[not run]".len()..].trim();
                (Outcome::NotRun, Some(reason.to_owned()))
            }
            Some(_) if passed => (Outcome::Passed, None),
            _ => match failure(line, printed) {
                // A condition that the test does not ask for.
                reason if reason.contains("ulimit:") && reason.contains("cannot modify limit") => {
                    (Outcome::NotRun, Some(reason))
                }
                reason => (Outcome::Failed, Some(reason)),
            },
        };
        Self {
            name: name.to_owned(),
            result,
            seconds,
            reason,
        }
    }

    /// Returns the result of a test that was ended after its time.
    pub(super) fn endless(name: &str, seconds: u64) -> Self {
        Self {
            name: name.to_owned(),
            result: Outcome::Failed,
            seconds,
            reason: Some("did not end in time".to_owned()),
        }
    }
}

/// Returns why a test failed: the first line that should not be there, or be different.
fn failure(line: Option<&str>, printed: &str) -> String {
    let is_header = |line: &&str| line.starts_with("+++") || line.starts_with("---");
    let changed = |sign: char| {
        let lines = printed.lines().map(str::trim_start);
        lines
            .filter(|line| !is_header(line))
            .find(|line| line.starts_with(sign))
    };
    match (changed('+').or_else(|| changed('-')), line) {
        (Some(changed), _) => changed.to_owned(),
        (None, Some(line)) => line.to_owned(),
        (None, None) => {
            let last = printed.lines().rfind(|line| !line.trim().is_empty());
            last.unwrap_or("check printed nothing").to_owned()
        }
    }
}

/// Numbers of tests of each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of tests that passed.
    pub passed: usize,
    /// Number of tests that failed.
    pub failed: usize,
    /// Number of tests whose conditions are not met.
    pub not_run: usize,
}

impl Totals {
    pub(super) fn count(results: &[TestResult]) -> Self {
        let number = |outcome| results.iter().filter(|r| r.result == outcome).count();
        Self {
            passed: number(Outcome::Passed),
            failed: number(Outcome::Failed),
            not_run: number(Outcome::NotRun),
        }
    }
}

/// Tests of which no success is expected.
#[derive(Debug, Deserialize)]
pub struct Expected {
    /// Tests that fail, with their reasons.
    failure: Vec<Failure>,
    /// Tests that do not run, by reason.
    not_run: Vec<Missing>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failure {
    test: u32,
    /// Places on which it fails. All if there are none.
    #[serde(default)]
    on: Vec<String>,
    /// Other filesystem on which the test fails, too.
    peer: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Missing {
    /// Feature of the filesystem, or tool of the host, that is missing.
    reason: String,
    #[serde(default)]
    on: Vec<String>,
    /// Numbers of tests and ranges, separated by spaces.
    tests: String,
}

impl Expected {
    /// Reads the list of this program.
    ///
    /// # Errors
    /// Fails if the list is not valid.
    pub fn read() -> Result<Self> {
        Self::parse(include_str!("expected.toml"))
    }

    fn parse(text: &str) -> Result<Self> {
        let wrong = |e: String| Error::Usage(format!("expected.toml: {e}"));
        let expected: Self = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        for missing in &expected.not_run {
            numbers(&missing.tests).map_err(wrong)?;
        }
        Ok(expected)
    }

    /// Returns why a test that fails or does not run is expected to. None if it is not on the list.
    fn reason(&self, on: &str, result: &TestResult) -> Option<String> {
        let here = |places: &[String]| places.is_empty() || places.iter().any(|place| place == on);
        match result.result {
            Outcome::Passed => None,
            Outcome::Failed => {
                let is_it = |f: &&Failure| here(&f.on) && name(f.test) == result.name;
                let failure = self.failure.iter().find(is_it)?;
                let Failure { peer, reason, .. } = failure;
                Some(format!("{reason}; fails on {peer}, too"))
            }
            Outcome::NotRun => {
                let names = |m: &Missing| numbers(&m.tests).unwrap_or_default();
                let is_it = |m: &&Missing| {
                    here(&m.on) && names(m).into_iter().any(|n| name(n) == result.name)
                };
                Some(self.not_run.iter().find(is_it)?.reason.clone())
            }
        }
    }

    /// Returns what is not on the list, failures and tests that did not run, and the failures that are.
    pub fn judge(&self, on: &str, results: &[TestResult]) -> (Vec<String>, Vec<String>) {
        let (mut unexpected, mut expected) = (Vec::new(), Vec::new());
        for result in results {
            let name = &result.name;
            match (result.result, self.reason(on, result)) {
                (Outcome::Passed, _) | (Outcome::NotRun, Some(_)) => {}
                (Outcome::Failed, Some(reason)) => expected.push(format!("{name}: {reason}")),
                (outcome, None) => {
                    let what = match outcome {
                        Outcome::NotRun => "did not run",
                        _ => "failed",
                    };
                    let seen = result.reason.as_deref().unwrap_or_default();
                    unexpected.push(format!("{name} {what}: {seen}"));
                }
            }
        }
        (unexpected, expected)
    }
}

fn name(number: u32) -> String {
    format!("generic/{number:03}")
}

/// Parses numbers and ranges, such as `3 34-36`.
fn numbers(text: &str) -> Result<Vec<u32>, String> {
    let number = |text: &str| {
        let parsed = text.parse::<u32>();
        parsed.map_err(|_| format!("'{text}' is no number of a test"))
    };
    let mut all = Vec::new();
    for word in text.split_whitespace() {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        all.extend(number(first)?..=number(last)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, result: Outcome) -> TestResult {
        TestResult {
            name: name.to_owned(),
            result,
            seconds: 1,
            reason: Some("why".to_owned()),
        }
    }

    #[test]
    fn t3_25_tests_that_did_not_run_are_a_list_too() {
        let expected = Expected::parse(
            "[[failure]]\ntest = 20\non = ['device']\npeer = 'fuse2fs'\nreason = 'r'\n\
             [[not_run]]\nreason = 'r'\ntests = '3 34-36'\n",
        )
        .unwrap();
        let results = [
            result("generic/001", Outcome::Passed),
            result("generic/003", Outcome::NotRun),
            result("generic/035", Outcome::NotRun),
            result("generic/020", Outcome::Failed),
            // A missing user or scratch device shows as tests that do not run.
            result("generic/037", Outcome::NotRun),
            result("generic/034", Outcome::Failed),
            // A test that passes although it is on a list is no fault.
            result("generic/036", Outcome::Passed),
        ];
        let missing = "generic/037 did not run: why";
        let failed = "generic/034 failed: why";
        let (unexpected, fails) = expected.judge("device", &results);
        assert_eq!(unexpected, [missing, failed]);
        assert_eq!(fails, ["generic/020: r; fails on fuse2fs, too"]);
        let (unexpected, _) = expected.judge("directory", &results);
        assert_eq!(unexpected, ["generic/020 failed: why", missing, failed]);
    }

    #[test]
    fn the_list_has_at_most_ten_failures_with_a_peer_each() {
        let expected = Expected::read().unwrap();
        assert!(expected.failure.len() <= 10);
        for failure in &expected.failure {
            let peers = ["fuse2fs", "passthrough_hp"];
            assert!(peers.contains(&&*failure.peer), "{failure:?}");
            assert!(!failure.reason.is_empty(), "{failure:?}");
        }
        for missing in &expected.not_run {
            assert!(!missing.reason.is_empty(), "{missing:?}");
        }
        assert!(Expected::parse("failure = []\n[[not_run]]\nreason = 'r'\ntests = 'x'\n").is_err());
    }

    #[test]
    fn what_check_prints_is_parsed() {
        let parse = |printed: &str, passed| {
            let parsed = TestResult::parse("generic/020", printed, passed, 3);
            (parsed.result, parsed.reason.unwrap_or_default())
        };
        let limited = "generic/394 1s ... - output mismatch\n    +line 16: ulimit: file size: cannot modify limit: no\n";
        assert_eq!(parse(limited, false).0, Outcome::NotRun);
        let passed = (Outcome::Passed, String::new());
        assert_eq!(
            parse(
                "FSTYP -- fuse\n\ngeneric/020        3s\nRan: generic/020\n",
                true
            ),
            passed
        );
        assert_eq!(parse("generic/020  2s ...  3s\n", true), passed);
        let not_run = "generic/020 1s ... [not run] no scratch device\nNot run: generic/020\n";
        let expected = (Outcome::NotRun, "no scratch device".to_owned());
        assert_eq!(parse(not_run, true), expected);
        let failed = "generic/020 - output mismatch (see x)\n    --- tests/generic/020.out\n    +++ x\n     QA\n    -right\n    +wrong\n";
        assert_eq!(parse(failed, false), (Outcome::Failed, "+wrong".to_owned()));
        let failed = "generic/020  4s ... _suite_check: filesystem on t is inconsistent\n";
        let reason = "_suite_check: filesystem on t is inconsistent".to_owned();
        assert_eq!(parse(failed, false), (Outcome::Failed, reason));
        let broken = (Outcome::Failed, "mkfs failed".to_owned());
        assert_eq!(parse("FSTYP\nmkfs failed\n\n", false), broken);
    }
}
