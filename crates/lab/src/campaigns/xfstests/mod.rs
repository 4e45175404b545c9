//! xfstests on volumes and on other FUSE filesystems, compared with a list of expected results.
//!
//! xfstests is built outside the project. It knows no filesystems of the type fuse that can be made anew, so the run gives it functions and a
//! helper of mount(8) for them.

mod outcome;
mod place;

pub use outcome::{Expected, Outcome, TestResult, Totals};
pub use place::Kind;

use crate::measure::workspace::Work;
use crate::measure::{helper, stop};
use crate::options::{Options, need_root};
use crate::{At, Error, Result};
use place::Place;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Users that tests change to.
const USERS: [&str; 3] = ["fsgqa", "fsgqa2", "123456-fsgqa"];
/// Time limit of commands that run no test.
const LIST_LIMIT: Duration = Duration::from_secs(300);

/// Run the generic tests of xfstests, and compare the results with the list of expected ones
///
/// DIR is a tree of xfstests after make. The users fsgqa, fsgqa2 and 123456-fsgqa must exist. Needs root. The results of all tests are
/// written after each one. Exit code 1 if a test fails or does not run that is not on the list.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Built tree of xfstests
    dir: PathBuf,
    /// File for the results, in JSON
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Filesystem under test; results of the last two are not compared with the list
    #[arg(long, value_name = "WHAT")]
    on: Kind,
    /// Run only these tests, such as generic/001,generic/013 (default: the group auto)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tests: Vec<String>,
    /// Time limit of each test, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    limit: u64,
    #[command(flatten)]
    options: Options,
}

/// Content of the file of results.
#[derive(Serialize)]
struct Report<'a> {
    suite: &'static str,
    on: &'static str,
    kernel: String,
    totals: Totals,
    tests: &'a [TestResult],
}

/// Runs the suite. Returns false if a result is not expected.
///
/// # Errors
/// Fails if the suite cannot run.
pub fn run(conditions: &Conditions) -> Result<bool> {
    need_root("a suite that mounts filesystems")?;
    let Conditions { dir, on, .. } = conditions;
    let dir = dir.canonicalize().at("find", dir)?;
    if !dir.join("src/lstat64").exists() {
        let what = "no built tree of xfstests; run make in it";
        return Err(Error::Usage(format!("{}: {what}", dir.display())));
    }
    let missing = missing_users();
    if !missing.is_empty() {
        let names = missing.join(", ");
        return Err(Error::Usage(format!(
            "tests need the users {names}; make them with useradd"
        )));
    }
    let expected = Expected::read()?;
    let program = conditions.options.need(on.program())?;
    let work = Work::create(conditions.options.work())?;
    let place = Place::create(work, &dir, *on, &program)?;
    let tests = tests(&place, &conditions.tests)?;
    let mut results = Vec::new();
    for name in &tests {
        stop::check()?;
        let result = run_test(&place, name, Duration::from_secs(conditions.limit))?;
        let reason = result.reason.as_deref().unwrap_or_default();
        eprintln!("{name} {:?} {} s {reason}", result.result, result.seconds);
        results.push(result);
        write(&conditions.out, *on, &results)?;
    }
    let Totals {
        passed,
        failed,
        not_run,
    } = Totals::count(&results);
    println!(
        "xfstests on {}: {passed} passed, {failed} failed, {not_run} not run",
        on.name()
    );
    if !on.is_ours() {
        return Ok(true);
    }
    let (unexpected, fails) = expected.judge(on.name(), &results);
    for line in &fails {
        println!("expected: {line}");
    }
    for line in &unexpected {
        println!("not expected: {line}");
    }
    Ok(unexpected.is_empty())
}

fn missing_users() -> Vec<&'static str> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let users: BTreeSet<&str> = users.lines().filter_map(|l| l.split(':').next()).collect();
    let missing = USERS.into_iter().filter(|name| !users.contains(name));
    missing.collect()
}

/// Returns the names of the tests to run.
fn tests(place: &Place, chosen: &[String]) -> Result<Vec<String>> {
    if !chosen.is_empty() {
        return Ok(chosen.to_vec());
    }
    let mut check = place.check(&["-n", "-g", "auto"]);
    let printed = helper::run(&mut check, 0, LIST_LIMIT).map_err(Error::Command)?;
    let words = printed.split_whitespace();
    let names = words.filter(|word| word.starts_with("generic/"));
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    Ok(names.into_iter().collect())
}

fn run_test(place: &Place, name: &str, limit: Duration) -> Result<TestResult> {
    let begin = Instant::now();
    let ended = helper::finish(&mut place.check(&[name]), limit, |_| None, |_| ());
    let ended = ended.at("run", Path::new("check"))?;
    let seconds = begin.elapsed().as_secs();
    let Some(status) = ended.status else {
        place.abandon();
        place.make()?;
        return Ok(TestResult::endless(name, seconds));
    };
    let printed = String::from_utf8_lossy(&ended.output);
    let result = TestResult::parse(name, &printed, status.success(), seconds);
    if result.result == Outcome::Failed {
        // Later tests do not suffer from what it left.
        place.abandon();
        place.make()?;
    }
    Ok(result)
}

fn write(out: &Path, on: Kind, results: &[TestResult]) -> Result<()> {
    let report = Report {
        suite: "xfstests",
        on: on.name(),
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        totals: Totals::count(results),
        tests: results,
    };
    let text = serde_json::to_string_pretty(&report)
        .map_err(|e| Error::Command(format!("cannot encode the results: {e}")))?;
    std::fs::write(out, text + "\n").at("write", out)
}
