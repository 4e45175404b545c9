//! Databases that are forked while they write, by the steps of docs/guide/fork-database.md.

use crate::branches::is_live_possible;
use crate::common::{Mounted, Place, good};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time of one command, in seconds. A command that takes longer is ended by timeout(1).
const COMMAND_MAX: &str = "60";

/// Longest wait for a server or for another acknowledged row.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Number of forks: from the environment for a long run by hand.
fn forks(default: u32) -> u32 {
    let number = std::env::var("TUFF_DATABASE_FORKS").ok();
    number.map_or(default, |number| number.parse().unwrap())
}

/// Longest time of a server or writer, in seconds. It ends them if the test itself is killed.
fn life() -> String {
    (2 * WAIT_MAX.as_secs() + 20 * u64::from(forks(10))).to_string()
}

/// Waits until a condition holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends a process that runs under timeout(1), which passes the signal on.
fn end(child: &mut Child, signal: rustix::process::Signal) {
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(child), signal);
    let _ = child.wait();
}

/// Forks the volume that is mounted on `m`, and mounts the fork on `fork`. Returns the time of the fork.
fn fork(place: &Place, name: &str) -> (Mounted, Duration) {
    let start = Instant::now();
    good(&place.0, &["fork", "m", name]);
    let time = start.elapsed();
    let options = ["--allow-other", "--branch", name];
    (Mounted::on(place, "d", "fork", &options).unwrap(), time)
}

/// Reports what a run by hand is for.
fn report(database: &str, rows: u64, mut times: Vec<Duration>) {
    times.sort();
    let median = times[times.len() / 2];
    let longest = times[times.len() - 1];
    tuff_testkit::note(format!(
        "{database}: {} forks with all of up to {rows} acknowledged rows; median {median:?}, longest {longest:?}",
        times.len()
    ));
}

/// Rows that a client writes, numbered from 1.
struct Writer {
    process: Child,
    acknowledged: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts a client. `write` makes it write a row and returns when the client has reported the number of that row, or `None`
    /// when the client has ended.
    fn new(
        mut process: Child,
        write: impl Fn(u64, &mut ChildStdin, &mut BufReader<ChildStdout>) -> Option<()> + Send + 'static,
    ) -> Self {
        let mut input = process.stdin.take().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let acknowledged = Arc::new(AtomicU64::new(0));
        let count = acknowledged.clone();
        let thread = std::thread::spawn(move || {
            for number in 1.. {
                if write(number, &mut input, &mut output).is_none() {
                    return;
                }
                count.store(number, Ordering::SeqCst);
            }
        });
        Self {
            process,
            acknowledged,
            thread: Some(thread),
        }
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits for another row after `number`.
    fn wait_beyond(&self, number: u64) {
        wait_for("acknowledged row", || {
            let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            let acknowledged = self.acknowledged();
            let is_beyond = acknowledged > number;
            assert!(
                is_beyond || !has_ended,
                "the writer ended after row {acknowledged}"
            );
            is_beyond
        });
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        end(&mut self.process, rustix::process::Signal::TERM);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads the line that acknowledges a row.
fn read_number(number: u64, output: &mut BufReader<ChildStdout>) -> Option<()> {
    let mut line = String::new();
    output.read_line(&mut line).ok()?;
    (line.trim() == number.to_string()).then_some(())
}

/// Programs of PostgreSQL, and the user that they run as.
struct Postgres {
    bin: PathBuf,
    user: &'static str,
}

impl Postgres {
    /// Returns the newest version of Debian's packages.
    fn find() -> Option<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        let versions = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
        let bin = versions
            .filter(|bin| bin.join("initdb").exists() && bin.join("postgres").exists())
            .max()?;
        let has_user = Command::new("id").arg("postgres").output();
        let user = match has_user.is_ok_and(|out| out.status.success()) {
            true => "postgres",
            false => "nobody",
        };
        Some(Self { bin, user })
    }

    /// Returns a command of a program that ends after some seconds.
    fn command(&self, seconds: &str, program: &str) -> Command {
        let group = Command::new("id").args(["-g", self.user]).output().unwrap();
        let group = String::from_utf8(group.stdout).unwrap();
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", seconds, "setpriv", "--clear-groups"])
            .args(["--reuid", self.user, "--regid", group.trim()])
            .arg(self.bin.join(program))
            .current_dir("/");
        command
    }

    /// Runs a program that must succeed. Returns its output.
    fn run(&self, program: &str, args: &[&str]) -> String {
        let mut command = self.command(COMMAND_MAX, program);
        let out = command.args(args).stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{program} {args:?}: {error}");
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    /// Makes a directory that the user of the server owns.
    fn directory(&self, path: &Path) {
        fs::create_dir_all(path).unwrap();
        let id = |option: &str| {
            let out = Command::new("id").args([option, self.user]).output();
            let id = String::from_utf8(out.unwrap().stdout).unwrap();
            id.trim().parse().ok()
        };
        chown(path, id("-u"), id("-g")).unwrap();
    }
}

/// A running server. Dropping it ends the server at once, like a crash of the program.
struct Server<'a> {
    postgres: &'a Postgres,
    process: Child,
    sockets: String,
}

impl<'a> Server<'a> {
    /// Starts the server of a data directory, and waits until it takes queries.
    fn start(postgres: &'a Postgres, data: &Path, sockets: &Path) -> Self {
        let log = data.with_file_name("log");
        let mut command = postgres.command(&life(), "postgres");
        command.arg("-D").arg(data).stdin(Stdio::null());
        command.stderr(fs::File::create(&log).unwrap());
        let mut server = Self {
            postgres,
            process: command.spawn().unwrap(),
            sockets: sockets.to_str().unwrap().to_owned(),
        };
        wait_for("server that takes queries", || {
            let ended = server.process.try_wait().unwrap();
            let log = fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none(), "the server ended: {log}");
            let mut query = server.client(COMMAND_MAX, "psql");
            let query = query.args(["-c", "SELECT 1"]).output().unwrap();
            query.status.success()
        });
        server
    }

    /// Returns the command of a client.
    fn client(&self, seconds: &str, program: &str) -> Command {
        let mut client = self.postgres.command(seconds, program);
        client.args(["-h", &self.sockets, "-d", "postgres"]);
        client
    }

    /// Runs a query that must succeed. Returns its result.
    fn sql(&self, query: &str) -> String {
        let options = ["-h", &self.sockets, "-d", "postgres"];
        let query = ["-v", "ON_ERROR_STOP=1", "-qAtc", query];
        let args = [&options[..], &query].concat();
        self.postgres.run("psql", &args)
    }

    /// Starts a client that inserts numbered rows into a table, each in a transaction.
    fn writer(&self, table: &'static str) -> Writer {
        let mut client = self.client(&life(), "psql");
        let client = client.args(["-v", "ON_ERROR_STOP=1", "-qAt"]);
        let client = client.stdin(Stdio::piped()).stdout(Stdio::piped());
        Writer::new(client.spawn().unwrap(), move |number, input, output| {
            writeln!(input, "INSERT INTO {table} VALUES ({number}) RETURNING n;").ok()?;
            read_number(number, output)
        })
    }

    /// Starts pgbench.
    fn load(&self) -> Load {
        let mut bench = self.client(&life(), "pgbench");
        bench.args(["-n", "-c", "2", "-T", &life()]);
        bench.stdout(Stdio::null()).stderr(Stdio::null());
        Load(bench.spawn().unwrap())
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        end(&mut self.process, rustix::process::Signal::QUIT);
    }
}

/// A run of pgbench.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        end(&mut self.0, rustix::process::Signal::TERM);
    }
}

fn append(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Makes a fork of a data directory startable beside the original, as the guide says.
fn prepare(original: &Path, fork: &Path, sockets: &Path) {
    fs::remove_file(fork.join("pg/postmaster.pid")).unwrap();
    for link in fs::read_dir(fork.join("pg/pg_tblspc")).unwrap() {
        let link = link.unwrap().path();
        let target = fs::read_link(&link).unwrap();
        fs::remove_file(&link).unwrap();
        symlink(fork.join(target.strip_prefix(original).unwrap()), &link).unwrap();
    }
    let settings = [
        &*format!("unix_socket_directories = '{}'", sockets.display()),
        "archive_mode = off",
        "archive_command = ''",
        "max_logical_replication_workers = 0",
        "",
    ]
    .join("\n");
    append(&fork.join("pg/postgresql.auto.conf"), &settings);
}

/// Returns true if recovery of a fork repeats CREATE TABLESPACE, which links to the directory of the original again.
fn links_to_the_original(postgres: &Postgres, data: &Path) -> bool {
    let data = data.to_str().unwrap();
    let control = postgres.run("pg_controldata", &[data]);
    let redo = control
        .lines()
        .find_map(|line| line.strip_prefix("Latest checkpoint's REDO location:"));
    // It ends with an error where the log ends.
    let mut dump = postgres.command(COMMAND_MAX, "pg_waldump");
    dump.args(["-p", &format!("{data}/pg_wal"), "-r", "Tablespace"]);
    let dump = dump.args(["-s", redo.unwrap().trim()]).output().unwrap();
    String::from_utf8_lossy(&dump.stdout).contains("CREATE")
}

/// Checks the fork of a server that had acknowledged some rows of each table, and lets it write.
fn examine(server: &Server, data: &Path, acknowledged: &[(&str, u64)]) {
    for (table, number) in acknowledged {
        let found_rows = server.sql(&format!("SELECT count(*) FROM {table} WHERE n <= {number}"));
        assert_eq!(found_rows, number.to_string(), "rows of {table}");
    }
    let space =
        server.sql("SELECT pg_tablespace_location(oid) FROM pg_tablespace WHERE oid > 9999");
    assert_eq!(Path::new(&space), data.with_file_name("fast"));
    // Each transaction of pgbench adds the same number to all of these.
    let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), \
                (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";
    let sums = server.sql(sums);
    let mut parts = sums.split('|');
    let first = parts.next().unwrap();
    assert!(parts.all(|sum| sum == first), "{sums}");
    if server.postgres.bin.join("pg_amcheck").exists() {
        let args = [
            "-h",
            &server.sockets,
            "--install-missing",
            "--heapallindexed",
        ];
        let args = [&args[..], &["-d", "postgres"]].concat();
        assert_eq!(server.postgres.run("pg_amcheck", &args), "");
    }
    // T3-24: what the fork writes is not archived, although the original's file of settings says so.
    assert_eq!(server.sql("SHOW archive_mode"), "off", "T3-24");
    let inherited = fs::read_to_string(data.join("postgresql.conf")).unwrap();
    assert!(inherited.contains("archive_mode = on"), "T3-24");
    server
        .sql("INSERT INTO slow VALUES (-1); INSERT INTO quick VALUES (-1); SELECT pg_switch_wal()");
    server.sql("CHECKPOINT");
}

#[test]
fn postgresql_is_forked_while_it_writes() {
    let Some(postgres) = Postgres::find() else {
        return tuff_testkit::skipped("PostgreSQL is not installed");
    };
    if !is_live_possible() {
        return;
    }
    let place = Place::new("postgresql");
    good(&place.0, &["create", "d", "-s", "4G"]);
    let Some(mounted) = Mounted::on(&place, "d", "m", &["--allow-other"]) else {
        return;
    };
    let original = mounted.0.clone();
    let data = original.join("pg");
    let [archive, sockets, fork_sockets] = ["archive", "s", "t"].map(|name| place.0.join(name));
    for dir in [
        &data,
        &original.join("fast"),
        &archive,
        &sockets,
        &fork_sockets,
    ] {
        postgres.directory(dir);
    }
    let data_text = data.to_str().unwrap();
    postgres.run("initdb", &["--wal-segsize=1", "-D", data_text]);
    // The log names the server that archived a segment.
    let settings = format!(
        "listen_addresses = ''\nunix_socket_directories = '{}'\nmax_wal_size = 16MB\narchive_mode = on\n\
         archive_command = 'pwd >> {archive}/log && test ! -f {archive}/%f && cp %p {archive}/%f'\n",
        sockets.display(),
        archive = archive.display()
    );
    append(&data.join("postgresql.conf"), &settings);
    let server = Server::start(&postgres, &data, &sockets);
    let space = format!(
        "CREATE TABLESPACE fast LOCATION '{}'",
        original.join("fast").display()
    );
    server.sql(&space);
    server.sql("CREATE TABLE slow (n bigint PRIMARY KEY)");
    server.sql("CREATE TABLE quick (n bigint PRIMARY KEY) TABLESPACE fast");
    let options = [
        "-h",
        &server.sockets,
        "-q",
        "-i",
        "-s",
        "1",
        "-d",
        "postgres",
    ];
    postgres.run("pgbench", &options);
    let (forked, _) = fork(&place, "early");
    assert!(links_to_the_original(&postgres, &forked.0.join("pg")));
    forked.end();
    server.sql("CHECKPOINT");
    let load = server.load();
    let writers = ["slow", "quick"].map(|table| (table, server.writer(table)));
    let mut times = Vec::new();
    for round in 0..forks(3) {
        let seen = writers.each_ref().map(|(_, writer)| writer.acknowledged());
        for ((_, writer), seen) in writers.iter().zip(seen) {
            writer.wait_beyond(seen + 20);
        }
        let before = writers
            .each_ref()
            .map(|(table, writer)| (*table, writer.acknowledged()));
        let name = format!("fork{round}");
        let (forked, time) = fork(&place, &name);
        times.push(time);
        let fork_data = forked.0.join("pg");
        assert!(!links_to_the_original(&postgres, &fork_data));
        prepare(&original, &forked.0, &fork_sockets);
        let fork_server = Server::start(&postgres, &fork_data, &fork_sockets);
        examine(&fork_server, &fork_data, &before);
        // The original goes on, and has nothing of the fork.
        for (_, writer) in &writers {
            writer.wait_beyond(writer.acknowledged());
        }
        let forks_rows =
            "SELECT count(*) FROM (SELECT n FROM slow UNION ALL SELECT n FROM quick) a WHERE n < 0";
        assert_eq!(server.sql(forks_rows), "0");
        drop(fork_server);
        forked.end();
        good(&place.0, &["branch", "delete", "d", &name]);
    }
    let rows = writers
        .iter()
        .map(|(_, writer)| writer.acknowledged())
        .sum();
    drop((writers, load));
    server.sql("SELECT pg_switch_wal()");
    wait_for("archived segment", || archive.join("log").exists());
    drop(server);
    let archived = fs::read_to_string(archive.join("log")).unwrap();
    let only_original = archived.lines().all(|dir| Path::new(dir) == data);
    assert!(only_original, "T3-24: {archived}");
    mounted.end();
    good(&place.0, &["check", "--data", "d"]);
    report("PostgreSQL", rows, times);
}

/// Writes the rows that are asked for, each in a transaction.
const SQLITE_WRITER: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("PRAGMA synchronous=NORMAL")
db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, text)")
db.execute("CREATE INDEX i ON t (text)")
for line in sys.stdin:
    db.execute("INSERT INTO t VALUES (?, ?)", (int(line), line * 50))
    print(int(line), flush=True)
"#;

/// Checks the database, counts its rows up to a number, and writes one.
const SQLITE_CHECK: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
print(db.execute("PRAGMA integrity_check").fetchall())
print(db.execute("SELECT count(*) FROM t WHERE n <= ?", (int(sys.argv[2]),)).fetchall())
db.execute("INSERT INTO t VALUES (1000000000, 'fork')")
"#;

#[test]
fn sqlite_is_forked_while_it_writes() {
    let python = || {
        let mut python = Command::new("timeout");
        python.args(["-k", "5", &life(), "python3", "-c"]);
        python
    };
    let probe = python().arg("import sqlite3").output();
    if !probe.is_ok_and(|out| out.status.success()) {
        return tuff_testkit::skipped("SQLite needs timeout and python3");
    }
    if !is_live_possible() {
        return;
    }
    let place = Place::new("sqlite");
    good(&place.0, &["create", "d", "-s", "1G"]);
    let Some(mounted) = Mounted::on(&place, "d", "m", &["--allow-other"]) else {
        return;
    };
    let mut client = python();
    let client = client.arg(SQLITE_WRITER).arg(mounted.0.join("app.db"));
    let client = client.stdin(Stdio::piped()).stdout(Stdio::piped());
    let writer = Writer::new(client.spawn().unwrap(), |number, input, output| {
        writeln!(input, "{number}").ok()?;
        read_number(number, output)
    });
    let mut times = Vec::new();
    for round in 0..forks(10) {
        writer.wait_beyond(writer.acknowledged() + 50);
        let before = writer.acknowledged().to_string();
        let name = format!("fork{round}");
        let (forked, time) = fork(&place, &name);
        times.push(time);
        let database = forked.0.join("app.db");
        let check = python()
            .arg(SQLITE_CHECK)
            .arg(&database)
            .arg(&before)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&check.stdout);
        let error = String::from_utf8_lossy(&check.stderr);
        assert_eq!(text, format!("[('ok',)]\n[({before},)]\n"), "{error}");
        writer.wait_beyond(writer.acknowledged());
        forked.end();
        good(&place.0, &["branch", "delete", "d", &name]);
    }
    let rows = writer.acknowledged();
    drop(writer);
    let database = mounted.0.join("app.db");
    let rows_text = rows.to_string();
    let check = python()
        .arg(SQLITE_CHECK)
        .arg(&database)
        .arg(&rows_text)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&check.stdout);
    assert_eq!(text, format!("[('ok',)]\n[({rows},)]\n"));
    mounted.end();
    good(&place.0, &["check", "--data", "d"]);
    report("SQLite", rows, times);
}
