//! The command `tuff-lab`.
//!
//! Exit codes, which scripts may rely on:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | our own tool failed or was wrong; with `report --check`, the document's block is not what the record says |
//! | 2 | wrong arguments, or a definition that makes no sense |
//! | 3 | a record is corrupt |
//! | 5 | the host failed |

use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_lab::campaign::{crash, files};
use tuff_lab::corpus::{Corpora, SHIPPED};
use tuff_lab::define::{Action, Definition, Size};
use tuff_lab::engine::{TOOLS, Tool};
use tuff_lab::experiment;
use tuff_lab::record::{self, Line, RecordWriter};
use tuff_lab::report::{self, Style};
use tuff_lab::run::{self, Conditions};
use tuff_lab::serve;
use tuff_lab::{Error, Result, machine, measure};

/// Measure Tuff beside the tools people use today.
#[derive(Parser)]
#[command(
    name = "tuff-lab",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(RunArgs),
    /// Measure building images from trees, at the settings given
    Build(OneArgs),
    /// Measure extracting images, at the settings given
    Extract(OneArgs),
    /// Measure checking images, at the settings given
    Check(OneArgs),
    Serve(ServeArgs),
    Soak(SoakArgs),
    Experiment(ExperimentArgs),
    #[command(subcommand)]
    Campaign(CampaignVerb),
    Report(ReportArgs),
    Corpus(CorpusArgs),
    #[command(hide = true)]
    Sample(SampleArgs),
}

/// Measure what definitions ask for, and keep the samples as a record
#[derive(clap::Args)]
struct RunArgs {
    /// Definition files
    #[arg(required = true, value_name = "DEFINITION")]
    definitions: Vec<PathBuf>,
    /// Only tasks whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where records go, each run in a folder DATE-MACHINE
    #[arg(long, default_value = "benchmarks/record", value_name = "DIR")]
    records: PathBuf,
    /// Date in the folder's name (default: today)
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<String>,
    /// Machine in the folder's name (default: the host's name)
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    #[command(flatten)]
    how: HowArgs,
}

/// Measure one thing, at settings given here, and print the table
#[derive(clap::Args)]
struct OneArgs {
    /// Algorithm and level, such as zstd:3
    #[arg(
        short = 'z',
        long,
        default_value = "lz4hc:9",
        value_name = "ALG[:LEVEL]"
    )]
    compress: String,
    /// Cluster size (EROFS) or block size (SquashFS)
    #[arg(short = 'C', long, default_value = "64K", value_name = "SIZE")]
    cluster: Size,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(clap::Args)]
struct HowArgs {
    /// Trees to measure on; the name is the last part of the path unless given
    #[arg(long, required = true, value_name = "[NAME=]DIR")]
    tree: Vec<String>,
    /// Where a tool is (default: PATH, and beside this program)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
    /// Rounds of every task (default: what the definition says)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Shuffle the order inside rounds by this seed (default: the definition's order)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Folder for images and extracted trees, best on tmpfs
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    work: PathBuf,
    /// A sample is loud when others used more than this share of the CPU
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    max_foreign: f64,
    /// Take a loud sample again, up to this often
    #[arg(long, default_value_t = 0, value_name = "N")]
    retries: u32,
    /// Compare results in full in every round, not in the first only
    #[arg(long)]
    verify_every_round: bool,
    /// Control group (a folder) to measure commands in, for the memory of all processes together
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
}

/// Measure reads through mounts: ours, the kernel's, and other FUSE servers'
///
/// Writes the record, its table and its plot as NAME.jsonl, NAME.md and NAME.svg.
#[derive(clap::Args)]
struct ServeArgs {
    /// Definition file
    #[arg(value_name = "DEFINITION", required_unless_present = "from")]
    definition: Option<PathBuf>,
    /// Tree that images are made of
    #[arg(long, value_name = "DIR", required_unless_present = "from")]
    tree: Option<PathBuf>,
    /// Measure nothing; make table and plot of this record again, or one table of several
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["definition", "tree"])]
    from: Vec<PathBuf>,
    /// Put a short table of the records into this document, between <!-- lab:begin BLOCK --> and <!-- lab:end BLOCK -->
    #[arg(long, value_name = "FILE", requires_all = ["block", "from"])]
    readme: Option<PathBuf>,
    /// Name of the block
    #[arg(long, value_name = "BLOCK", requires = "readme")]
    block: Option<String>,
    /// Only workloads whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only images whose name contains this
    #[arg(long, value_name = "TEXT")]
    image: Option<String>,
    /// Where a program is (default: PATH, and beside this program)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
    /// Rounds of every workload (default: what the definition says)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Folder for images and mount points, on a disk
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Where the record goes
    #[arg(long, default_value = "benchmarks/record/serve", value_name = "DIR")]
    records: PathBuf,
}

/// Read one mount for a long time with little memory; report growth, decay and wrong bytes
///
/// Exit code 1 when there are findings.
#[derive(clap::Args)]
struct SoakArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Tree that it was made of; large files at its top are read as a whole and in pages
    #[arg(long, value_name = "DIR")]
    tree: PathBuf,
    /// How long
    #[arg(long, default_value_t = 30.0, value_name = "MINUTES")]
    minutes: f64,
    /// Memory that server and readers get together
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    limit: Size,
    /// Control group (a folder) below which one is made
    #[arg(long, default_value = "/sys/fs/cgroup/memory", value_name = "DIR")]
    cgroup: PathBuf,
    /// Seed of what is read when
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Where a program is (default: PATH, and beside this program)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
    /// Folder for the mount point
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Arguments for the server
    #[arg(last = true)]
    extra: Vec<String>,
}

/// Run the published experiments on the flash model, in virtual time
///
/// Writes report.md, charts (SVG) and raw samples (JSON lines). Exit code 1 if a shape is not as published.
#[derive(clap::Args)]
struct ExperimentArgs {
    /// Experiments, E1 to E10 (default: all)
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Folder for the report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How large: tiny, quick, full, large
    #[arg(long, default_value = "quick", value_name = "NAME")]
    scale: String,
    /// Another definition than the one that ships
    #[arg(long, value_name = "FILE")]
    definition: Option<PathBuf>,
    /// Folder for the volumes of E10 (default: inside --out)
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Another seed than the definition's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Look for mistakes in volumes for a long time
#[derive(Subcommand)]
enum CampaignVerb {
    Crash(CrashArgs),
    Files(FilesArgs),
}

/// What volumes show after losses of power: every pair of operations, more by seed, each safety rule off
///
/// Writes report.md and, unit by unit, progress.jsonl; started again with the same folder it goes on. Exit code 1 if something was found.
#[derive(clap::Args)]
struct CrashArgs {
    /// Folder for progress and report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Begin nothing after this long, and go on with more seeds until then (default: the plan, once)
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Rounds of sampled sequences in the plan
    #[arg(long, default_value_t = 40, value_name = "N")]
    rounds: u32,
    /// Start of everything random
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Units at a time
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Only this group: ones, tricky, pairs, threes, twelves, snapshots, "long logs", rules
    #[arg(long, value_name = "GROUP")]
    only: Vec<String>,
}

/// Files on a mounted filesystem against plain bytes: writes, mappings, holes, truncation
///
/// Exit code 1, and the operations that led there, if a byte is wrong.
#[derive(clap::Args)]
struct FilesArgs {
    /// Folder on the filesystem
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Operations
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    operations: u64,
    /// What fixes every operation
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Files at once
    #[arg(long, default_value_t = 4, value_name = "N")]
    files: usize,
    /// Longest file
    #[arg(long, default_value = "1M", value_name = "SIZE")]
    size: Size,
    /// Longest operation
    #[arg(long, default_value = "64K", value_name = "SIZE")]
    length: Size,
    /// Without mappings
    #[arg(long)]
    no_mmap: bool,
}

/// Make tables from records
#[derive(clap::Args)]
struct ReportArgs {
    /// Record files, or folders of them
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// How much to tell
    #[arg(long, value_enum, default_value = "full")]
    style: StyleArg,
    /// Only this action
    #[arg(long, value_enum)]
    action: Option<ActionArg>,
    /// Put the table into this document, between <!-- lab:begin BLOCK --> and <!-- lab:end BLOCK -->
    #[arg(long, value_name = "FILE", requires = "block")]
    readme: Option<PathBuf>,
    /// Name of the block
    #[arg(long, value_name = "BLOCK", requires = "readme")]
    block: Option<String>,
    /// Change nothing; exit with 1 when the document's block is another
    #[arg(long, requires = "readme")]
    check: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum StyleArg {
    /// Every tool of every task, notes, bars, command lines
    Full,
    /// Ours beside each rival
    Brief,
    /// What was to be reached and what was
    Bars,
}

#[derive(Clone, Copy, ValueEnum)]
enum ActionArg {
    Build,
    Extract,
    Check,
}

/// Make the trees to measure on, from packages of the Debian release that runs here
#[derive(clap::Args)]
struct CorpusArgs {
    /// Folder to make them in
    dir: PathBuf,
    /// Only these (default: those marked usual)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Recipes (default: those that ship)
    #[arg(long, value_name = "FILE")]
    corpora: Option<PathBuf>,
    /// Say what there is, make nothing
    #[arg(long)]
    list: bool,
}

/// Run one command and print what it used
#[derive(clap::Args)]
struct SampleArgs {
    /// File for what the command says
    #[arg(long)]
    said: PathBuf,
    /// Control group to join
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Run(args) => run_verb(&args),
        Verb::Build(args) => one_verb(&args, Action::Build),
        Verb::Extract(args) => one_verb(&args, Action::Extract),
        Verb::Check(args) => one_verb(&args, Action::Check),
        Verb::Serve(args) => serve_verb(&args),
        Verb::Soak(args) => soak_verb(&args),
        Verb::Experiment(args) => experiment_verb(&args),
        Verb::Campaign(CampaignVerb::Crash(args)) => crash_verb(&args),
        Verb::Campaign(CampaignVerb::Files(args)) => files_verb(&args),
        Verb::Report(args) => report_verb(&args),
        Verb::Corpus(args) => corpus_verb(&args),
        Verb::Sample(args) => sample_verb(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("tuff-lab: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}

fn run_verb(args: &RunArgs) -> Result<bool> {
    let definitions: Vec<Definition> = args
        .definitions
        .iter()
        .map(|d| Definition::read(d))
        .collect::<Result<_>>()?;
    let mut conditions = conditions(&args.how)?;
    conditions.only = args.only.clone();
    let date = args.date.clone().unwrap_or_else(today);
    let name = args.machine.clone().unwrap_or_else(machine::host_name);
    let folder = args.records.join(format!("{date}-{name}"));
    let mut fine = true;
    for definition in &definitions {
        let mut writer = RecordWriter::create(&folder, &definition.name)?;
        eprintln!("record: {}", writer.path().display());
        fine &= run::run(definition, &conditions, &mut |line| writer.write(line))?;
    }
    Ok(fine)
}

fn serve_verb(args: &ServeArgs) -> Result<bool> {
    let mut fine = true;
    let records = match (&args.definition, &args.tree) {
        _ if !args.from.is_empty() => args.from.clone(),
        (Some(definition), Some(tree)) => {
            let definition = serve::define::Definition::read(definition)?;
            let conditions = serve::run::Conditions {
                tree: tree.clone(),
                tools: args
                    .tool
                    .iter()
                    .map(|t| program_at(t))
                    .collect::<Result<_>>()?,
                rounds: args.rounds,
                only: args.only.clone(),
                image: args.image.clone(),
                work: args.work.clone(),
            };
            let mut writer = RecordWriter::create(&args.records, &definition.name)?;
            eprintln!("record: {}", writer.path().display());
            fine = serve::run::run(&definition, &conditions, &mut |line| writer.write_any(line))?;
            vec![writer.path().to_owned()]
        }
        _ => {
            return Err(Error::Usage(
                "a definition and a tree are needed".to_owned(),
            ));
        }
    };
    let mut lines = Vec::new();
    for record in &records {
        lines.extend(serve::record::read(record)?);
    }
    let gathered = serve::report::gather(&lines);
    if let (Some(readme), Some(block)) = (&args.readme, &args.block) {
        let from = records.iter().map(|r| format!("--from {}", r.display()));
        let options = from.collect::<Vec<_>>().join(" ");
        let command = format!(
            "tuff-lab serve {options} --readme {} --block {block}",
            readme.display()
        );
        let table = serve::report::brief(&gathered);
        let text = format!("\n{table}\nMade by `{command}`.\n");
        let document = std::fs::read_to_string(readme).map_err(|e| Error::io("read", readme, e))?;
        let spliced = report::splice(&document, block, &text)?;
        std::fs::write(readme, spliced.text).map_err(|e| Error::io("write", readme, e))?;
        return Ok(fine);
    }
    let table = serve::report::render(&gathered);
    print!("{table}");
    let [record] = records.as_slice() else {
        return Ok(fine);
    };
    for (extension, text) in [("md", table), ("svg", serve::report::plot(&gathered))] {
        let path = record.with_extension(extension);
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(fine)
}

fn soak_verb(args: &SoakArgs) -> Result<bool> {
    let given: Vec<_> = args
        .tool
        .iter()
        .map(|t| program_at(t))
        .collect::<Result<_>>()?;
    let program = serve::run::program("tuff", &given)
        .ok_or_else(|| Error::Usage("tuff was not found; give its place with --tool".to_owned()))?;
    let whole = |path: &Path| std::path::absolute(path).map_err(|e| Error::io("find", path, e));
    let outcome = serve::soak::run(&serve::soak::Soak {
        program,
        extra: args.extra.clone(),
        image: whole(&args.image)?,
        tree: whole(&args.tree)?,
        length: std::time::Duration::from_secs_f64((args.minutes * 60.0).max(0.0)),
        limit: args.limit.0,
        cgroup: args.cgroup.clone(),
        seed: args.seed,
        work: whole(&args.work)?,
    })?;
    let text = serde_json::to_string_pretty(&outcome);
    println!(
        "{}",
        text.map_err(|e| Error::Command(format!("cannot write the outcome: {e}")))?
    );
    Ok(outcome.findings.is_empty())
}

/// `NAME=PATH`, whole, since commands run in another folder.
fn program_at(text: &str) -> Result<(String, PathBuf)> {
    let (name, path) = text
        .split_once('=')
        .ok_or_else(|| Error::Usage(format!("--tool '{text}': write NAME=PATH")))?;
    let path = std::path::absolute(path).map_err(|e| Error::io("find", Path::new(path), e))?;
    Ok((name.to_owned(), path))
}

/// The clock is asked for the name of a folder, and for nothing else.
fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    machine::date(now.map_or(0, |d| d.as_secs()))
}

fn experiment_verb(args: &ExperimentArgs) -> Result<bool> {
    let (name, text) = match &args.definition {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
            (path.display().to_string(), text)
        }
        None => (
            "the definition".to_owned(),
            experiment::define::PUBLISHED.to_owned(),
        ),
    };
    let mut definition = experiment::define::Definition::parse(&name, &text)?;
    definition.seed = args.seed.unwrap_or(definition.seed);
    let ids: Vec<String> = args.ids.iter().map(|id| id.to_uppercase()).collect();
    let work = args.work.clone().unwrap_or_else(|| args.out.join("work"));
    let outcomes = experiment::run(&definition, &ids, &args.scale, &args.out, &work, &mut |o| {
        print!("{}", o.markdown());
    })?;
    Ok(outcomes.iter().all(|o| o.passed()))
}

fn crash_verb(args: &CrashArgs) -> Result<bool> {
    let options = crash::Options {
        seed: args.seed,
        minutes: args.minutes,
        rounds: args.rounds,
        threads: args.threads,
        groups: args.only.clone(),
    };
    let program = std::env::current_exe()
        .and_then(std::fs::read)
        .map_err(|e| Error::io("read", Path::new("this program"), e))?;
    let build = blake3::hash(&program).to_hex();
    let fine = crash::run(&options, &args.out, &build, &mut |unit| eprintln!("{unit}"))?;
    let report = args.out.join("report.md");
    let text = std::fs::read_to_string(&report).map_err(|e| Error::io("read", &report, e))?;
    print!("{text}");
    Ok(fine)
}

fn files_verb(args: &FilesArgs) -> Result<bool> {
    let options = files::Options {
        seed: args.seed,
        operations: args.operations,
        files: args.files,
        size_max: args.size.0.max(1),
        len_max: args.length.0.max(1),
        mapped: !args.no_mmap,
    };
    match files::run(&options, &args.dir)? {
        Ok(tally) => println!(
            "{} operations, {} of them through mappings, {} bytes compared: nothing wrong",
            tally.operations, tally.mapped, tally.compared_bytes
        ),
        Err(wrong) => {
            println!("{wrong}");
            return Ok(false);
        }
    }
    Ok(true)
}

fn one_verb(args: &OneArgs, action: Action) -> Result<bool> {
    let definition = one_task(&args.compress, args.cluster, action)?;
    let mut lines: Vec<Line> = Vec::new();
    let fine = run::run(&definition, &conditions(&args.how)?, &mut |line| {
        lines.push(line.clone());
        Ok(())
    })?;
    let gathered = report::gather(&[lines], None)?;
    print!("{}", report::render(&gathered, Style::Full));
    Ok(fine)
}

/// Every tool that can do `action`, at the same settings.
fn one_task(compress: &str, cluster: Size, action: Action) -> Result<Definition> {
    let (algorithm, level) = match compress.split_once(':') {
        Some((algorithm, level)) => (algorithm, format!(", level = {level}")),
        None => (compress, String::new()),
    };
    let settings = format!(
        "{{ algorithm = '{algorithm}'{level}, cluster = '{cluster}', inline_tails = false, fragments = 'off', dedupe = 'off' }}"
    );
    let runs = match action {
        Action::Build => ["tuff", "mkfs.erofs", "mksquashfs"].as_slice(),
        Action::Extract => ["tuff", "fsck.erofs", "unsquashfs"].as_slice(),
        Action::Check => ["tuff", "fsck.erofs"].as_slice(),
    };
    let run = |name: &&str| {
        let incumbent = name.ends_with(".erofs");
        format!("{{ tool = '{name}', incumbent = {incumbent} }}")
    };
    let runs: Vec<String> = runs.iter().map(run).collect();
    let text = format!(
        "[[task]]\nname = '{compress} {cluster}'\naction = '{action}'\nsettings = {settings}\nrun = [{}]\n",
        runs.join(", ")
    );
    Definition::parse("command line", &text)
}

fn conditions(how: &HowArgs) -> Result<Conditions> {
    let mut trees: Vec<(String, PathBuf)> = Vec::new();
    for text in &how.tree {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
            None => {
                let path = PathBuf::from(text);
                let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
                (name.unwrap_or_else(|| "tree".to_owned()), path)
            }
        };
        if trees.iter().any(|(n, _)| *n == name) {
            return Err(Error::Usage(format!("two trees are called '{name}'")));
        }
        if !path.is_dir() {
            return Err(Error::Usage(format!(
                "tree {}: no directory there",
                path.display()
            )));
        }
        trees.push((name, path));
    }
    let tools = how.tool.iter().map(|t| tool_at(t)).collect::<Result<_>>()?;
    Ok(Conditions {
        trees,
        tools,
        rounds: how.rounds,
        only: None,
        seed: how.seed,
        work: how.work.clone(),
        max_foreign: how.max_foreign,
        retries: how.retries,
        verify_every_round: how.verify_every_round,
        cgroup: how.cgroup.clone(),
    })
}

fn tool_at(text: &str) -> Result<(Tool, PathBuf)> {
    let parsed = program_at(text).ok();
    let Some((tool, path)) = parsed.and_then(|(n, p)| Some((Tool::from_name(&n)?, p))) else {
        let names: Vec<&str> = TOOLS.iter().map(|t| t.name()).collect();
        return Err(Error::Usage(format!(
            "--tool '{text}': write NAME=PATH; names are {}",
            names.join(", ")
        )));
    };
    Ok((tool, path))
}

fn report_verb(args: &ReportArgs) -> Result<bool> {
    let mut records = Vec::new();
    for path in &args.records {
        records.extend(record::read(path)?);
    }
    let action = args.action.map(|a| match a {
        ActionArg::Build => Action::Build,
        ActionArg::Extract => Action::Extract,
        ActionArg::Check => Action::Check,
    });
    let style = match args.style {
        StyleArg::Full => Style::Full,
        StyleArg::Brief => Style::Brief,
        StyleArg::Bars => Style::Bars,
    };
    let table = report::render(&report::gather(&records, action)?, style);
    let (Some(readme), Some(block)) = (&args.readme, &args.block) else {
        print!("{table}");
        return Ok(true);
    };
    let word = |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_owned());
    let mut options = Vec::new();
    options.extend(word(args.style.to_possible_value()).map(|s| format!("--style {s}")));
    options.extend(
        args.action
            .and_then(|a| word(a.to_possible_value()))
            .map(|a| format!("--action {a}")),
    );
    let command = report::block_command(readme, &args.records, block, &options);
    let document = std::fs::read_to_string(readme).map_err(|e| Error::io("read", readme, e))?;
    let spliced = report::splice(
        &document,
        block,
        &format!("\n{table}\nMade by `{command}`.\n"),
    )?;
    if args.check {
        if spliced.changed {
            eprintln!(
                "tuff-lab: block '{block}' of {} is not what the record says; run {command}",
                readme.display()
            );
        }
        return Ok(!spliced.changed);
    }
    if spliced.changed {
        std::fs::write(readme, spliced.text).map_err(|e| Error::io("write", readme, e))?;
    }
    Ok(true)
}

fn corpus_verb(args: &CorpusArgs) -> Result<bool> {
    let text = match &args.corpora {
        Some(path) => std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?,
        None => SHIPPED.to_owned(),
    };
    let corpora = Corpora::parse(&text)?;
    if let Some(name) = args
        .only
        .iter()
        .find(|n| !corpora.list.iter().any(|c| c.name == **n))
    {
        return Err(Error::Usage(format!(
            "there is no corpus '{name}'; --list says what there is"
        )));
    }
    for corpus in &corpora.list {
        if args.list {
            println!("{:<10} {}", corpus.name, corpus.about);
        } else if args.only.contains(&corpus.name) || (args.only.is_empty() && corpus.usual) {
            eprintln!("{}: {}", corpus.name, corpus.about);
            corpus.make(&args.dir)?;
        }
    }
    Ok(true)
}

fn sample_verb(args: &SampleArgs) -> Result<bool> {
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| Error::Usage("a command is needed".to_owned()))?;
    let usage = measure::take(program, arguments, &args.said, args.cgroup.as_deref())?;
    let text = serde_json::to_string(&usage);
    println!(
        "{}",
        text.map_err(|e| Error::Command(format!("the sample cannot be written: {e}")))?
    );
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn one_task_holds_every_tool_that_can_do_it() {
        let labels = |action| -> Vec<String> {
            let definition = one_task("zstd:3", Size(65536), action).unwrap();
            definition.tasks[0]
                .runs
                .iter()
                .map(|r| r.label().to_owned())
                .collect()
        };
        assert_eq!(labels(Action::Build), ["tuff", "mkfs.erofs", "mksquashfs"]);
        assert_eq!(labels(Action::Check), ["tuff", "fsck.erofs"]);
        assert!(one_task("zstd:x", Size(65536), Action::Build).is_err());
    }

    #[test]
    fn tools_are_given_by_name_and_place() {
        assert_eq!(
            tool_at("mkfs.erofs=/a/b").unwrap(),
            (Tool::MkfsErofs, "/a/b".into())
        );
        assert!(tool_at("mkfs.ext4=/a/b").is_err());
        assert!(tool_at("tuff").is_err());
    }
}
