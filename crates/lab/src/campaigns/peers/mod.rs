//! First starts out of images that are not there, by Tuff and by the programs that others use for lazy images.
//!
//! ```text
//!  registry ◄── link of this process ◄── tuff mount, or containerd with a snapshotter, or nydusd ──► program
//!  images of all formats    round trip, rate, slow start, faults           empty caches
//! ```
//!
//! `benchmarks/peers` builds the other programs outside the project, and makes a registry's folder with their images and the
//! recordings of starts. Images of Tuff are made by the program under test. In each cell the ways take turns, and a sample counts only
//! if the program gives its answer and all files are those of the other ways.

mod containerd;
mod definition;
mod origin;
mod registry;
mod report;
mod sample;
mod ways;

use crate::definition::Definition as _;
use crate::engines::version;
use crate::measure::link::{Link, LinkConditions};
use crate::measure::process::Place;
use crate::measure::workspace::{self, Work};
use crate::measure::{helper, stop};
use crate::options::{Emit, Options, Selection, choose, need_root, select};
use crate::record::state::CellState;
use crate::record::{Header, Labels, Line, labels};
use crate::{At, Error, Result};
use definition::{Cell, Definition, Kind, Way};
use origin::Origin;
use registry::{Registry, text, warm};
use sample::{Bench, drop_caches};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use ways::mounter;

pub(crate) use report::{plot, render};

/// Text of the definition in `benchmarks/definitions`.
const DEFINITION: &str = include_str!("../../../../../benchmarks/definitions/peers/starts.toml");
/// Tag of images that `tuff push` made.
const TAG: &str = "tuff";
/// Address of a link with TLS. containerd and stargz-snapshotter use no TLS with loopback addresses; this one is reserved for benchmarks
/// (RFC 2544), and assigned to the loopback interface for the time of a run.
const TLS_ADDRESS: &str = "198.18.0.1";

/// Measure first starts out of images that are not there, beside stargz-snapshotter, nydus and SOCI
///
/// DIR is a folder that benchmarks/peers made. It also keeps the state of the run: samples that it has are not taken again, so that a
/// run continues where it was stopped. Writes a record of all cells that match and are complete, and prints its tables. Needs root.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Folder with the other programs and the images
    dir: PathBuf,
    #[command(flatten)]
    selection: Selection,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

impl Conditions {
    /// Returns true to print the cells in place of a run.
    pub fn is_list(&self) -> bool {
        self.selection.list
    }
}

fn definition() -> Result<Definition> {
    Definition::parse("peers", DEFINITION)
}

/// Cells of a run, each with its ways, and their state.
struct Plan {
    cells: Vec<(Cell, Vec<Way>)>,
    rounds: u32,
    states: PathBuf,
}

impl Plan {
    /// Returns the plan of a run with a program.
    fn new(conditions: &Conditions, place: &Place, tuff: &Path) -> Result<Plan> {
        let definition = definition()?;
        let all = definition.cells();
        let chosen = choose(&all, conditions.selection.cell.as_ref())?;
        let mut cells = Vec::new();
        for cell in chosen {
            let repository = cell.repository();
            if !place.dir.join("layers").join(&repository).exists() {
                let dir = conditions.dir.display();
                eprintln!("{cell}: left out; benchmarks/peers {dir} {repository} makes its image");
                continue;
            }
            let ways = definition.ways(cell);
            let ways: Vec<&Way> = ways.iter().collect();
            let ways = select(
                &ways,
                |way| way.name.clone(),
                "--way",
                conditions.selection.way.as_ref(),
            )?;
            cells.push((cell.clone(), ways.into_iter().cloned().collect()));
        }
        let state = format!("state-{}", workspace::digest(tuff)?);
        Ok(Plan {
            cells,
            rounds: conditions.selection.rounds.unwrap_or(definition.rounds),
            states: conditions.dir.join(state),
        })
    }

    /// Returns the samples that a cell lacks, in the order of their measurement. The order of the ways changes in each round.
    fn missing<'p>(&self, cell: &Cell, ways: &'p [Way], state: &CellState) -> Vec<(u32, &'p Way)> {
        let mut missing = Vec::new();
        for round in 1..=self.rounds {
            let turn = (0..ways.len()).map(|n| &ways[(n + round as usize - 1) % ways.len()]);
            missing.extend(
                turn.filter(|way| !state.has(&label(cell, way), round))
                    .map(|way| (round, way)),
            );
        }
        missing
    }
}

/// Prints the names of the cells.
///
/// # Errors
/// Fails if the folder is not one of `benchmarks/peers`.
pub fn list(conditions: &Conditions) -> Result<bool> {
    let place = Place::open(&conditions.dir, "peers")?;
    let plan = Plan::new(conditions, &place, &conditions.options.need("tuff")?)?;
    for (cell, ways) in &plan.cells {
        let state = CellState::open(&plan.states, &cell.to_string())?;
        println!("{cell} {}", plan.missing(cell, ways, &state).len());
    }
    Ok(true)
}

/// Takes the samples that are missing. Returns false if a way of ours failed or files differ.
///
/// # Errors
/// Fails if the host or the folder of the programs fails.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    need_root("mounting images")?;
    let tuff = conditions.options.need("tuff")?;
    let place = Place::open(&conditions.dir, "peers")?;
    let plan = Plan::new(conditions, &place, &tuff)?;
    let work = Work::create(conditions.options.work())?;
    let registry = Registry::start(&place, work.folder(), false)?;
    let mut session = Session {
        place,
        tuff,
        registry,
        encrypted: None,
        work,
        _address: None,
    };
    let settings = [
        ("version", version(&session.tuff)),
        ("others", session.place.versions()?),
        ("rounds", plan.rounds.to_string()),
    ];
    emit(&Line::Header(Header::here("peers", settings)?))?;
    let mut fine = true;
    for (cell, ways) in &plan.cells {
        let mut state = CellState::open(&plan.states, &cell.to_string())?;
        for (round, way) in plan.missing(cell, ways, &state) {
            stop::check()?;
            // A way that failed in this run has a line.
            if !state.has(&label(cell, way), round) {
                session.take(cell, way, round, &mut state)?;
            }
        }
        for line in &state.lines {
            let is_ours =
                |cell: &Labels| cell.get("way").is_some_and(|way| way.starts_with("tuff"));
            fine &= !matches!(line, Line::Failure(note) if is_ours(&note.cell));
            emit(line)?;
        }
    }
    Ok(fine)
}

/// Returns the labels of a way in a cell.
fn label(cell: &Cell, way: &Way) -> Labels {
    labels([
        ("block", &cell.block),
        ("image", &cell.image()),
        ("link", &cell.link()),
        ("way", &way.name),
        ("format", &way.format),
    ])
}

struct Session {
    place: Place,
    tuff: PathBuf,
    registry: Registry,
    /// Registry with TLS, once a cell needs it.
    encrypted: Option<Registry>,
    work: Work,
    _address: Option<TlsAddress>,
}

impl Session {
    /// Takes a sample of a way, and adds it to the state of its cell.
    fn take(&mut self, cell: &Cell, way: &Way, round: u32, state: &mut CellState) -> Result<()> {
        let labels = label(cell, way);
        let sampled = match self.sample(cell, way, round) {
            Ok(sampled) => sampled,
            Err(Error::Command(reason)) => {
                eprintln!("{cell}, {}: {reason}", way.name);
                return state.add(Line::failure(labels, reason));
            }
            Err(e) => return Err(e),
        };
        let start = sampled.values.get("start_ms").copied().unwrap_or(0.0);
        eprintln!("{cell}, round {round}, {}: {start:.0} ms", way.name);
        if let Some(reason) = sampled.offline {
            state.add(Line::note(
                labels.clone(),
                format!("does not start without the registry: {reason}"),
            ))?;
        }
        if let Some(content) = sampled.content {
            let path = self
                .place
                .dir
                .join(format!("content-{}", cell.repository()));
            let expected = std::fs::read_to_string(&path).unwrap_or_default();
            if expected.is_empty() {
                std::fs::write(&path, &content).at("write", &path)?;
            } else if expected != content {
                return state.add(Line::failure(
                    labels,
                    "the files differ from those of the other ways",
                ));
            }
        }
        state.add(Line::sample(labels, round, sampled.values))
    }

    fn sample(&mut self, cell: &Cell, way: &Way, round: u32) -> Result<sample::Sampled> {
        let (repository, tag) = self.image(cell, way)?;
        let mut reader = self.registry.repository(&repository)?;
        let chain = match way.kind {
            Kind::Download => text(&reader.manifest(&tag)?["layers"][0]["digest"])?.to_owned(),
            Kind::Tuff | Kind::Nydus => String::new(),
            _ => reader.chain(&tag)?,
        };
        if cell.tls && self.encrypted.is_none() {
            self._address = Some(TlsAddress::assign()?);
            self.encrypted = Some(Registry::start(&self.place, self.work.folder(), true)?);
        }
        let registry = match &self.encrypted {
            Some(encrypted) if cell.tls => encrypted,
            _ => &self.registry,
        };
        let link = open_link(cell, registry.address)?;
        let folder = self.work.path("sample");
        workspace::remove(&folder)?;
        let origin = Origin {
            address: link.address(),
            repository: repository.clone(),
            tag,
            chain,
            is_encrypted: cell.tls,
            logins: folder.join("logins"),
        };
        origin.write_login()?;
        let make = |number: u32| {
            let folder = folder.join(number.to_string());
            mounter(way, &self.place, &self.tuff, origin.clone(), folder)
        };
        let mounters = (0..cell.mounts).map(make).collect();
        drop_caches()?;
        // The server's files and the programs stay in memory.
        warm(&self.place, &repository)?;
        self.warm_programs()?;
        let bench = Bench {
            cell,
            registry,
            mounters,
            folder: &folder,
        };
        bench.sample(link, round == 1)
    }

    /// Returns the repository and the tag of a way's image, which is made if it is one of `tuff push`.
    fn image(&self, cell: &Cell, way: &Way) -> Result<(String, String)> {
        let source = cell.repository();
        if !way.tag.is_empty() {
            return Ok((source, way.tag.clone()));
        }
        let program = workspace::digest(&self.tuff)?;
        let recording = if way.recording { "-rec" } else { "" };
        let options = way
            .push
            .concat()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "")
            .to_lowercase();
        let repository = format!("{source}-{program}{options}{recording}");
        if self.registry.has(&repository, TAG) {
            return Ok((repository, TAG.to_owned()));
        }
        let mut words: Vec<String> = ["push", "--quiet"].map(str::to_owned).into();
        words.extend(way.push.iter().cloned());
        if way.recording {
            let path = self.place.dir.join(format!("recordings/{source}"));
            words.push(format!("--profile={}", path.display()));
        }
        let address = self.registry.address;
        words.push(format!("docker://{address}/{source}:oci"));
        words.push(format!("oci://{address}/{repository}:{TAG}"));
        helper::output(&self.tuff, words)?;
        Ok((repository, TAG.to_owned()))
    }

    /// Reads the programs that run in a sample, and those that they call.
    fn warm_programs(&self) -> Result<()> {
        let bin = self.place.dir.join("bin");
        let listing = std::fs::read_dir(&bin).at("list", &bin)?;
        let own = listing.flatten().map(|entry| entry.path());
        let system = ["curl", "chroot", "sh", "tar", "gzip", "mount", "umount"].into_iter();
        let system = system.filter_map(crate::engines::search);
        for path in own.chain(system).chain([self.tuff.clone()]) {
            std::fs::read(&path).at("read", &path)?;
        }
        Ok(())
    }
}

/// Opens a link to a registry with the conditions of a cell.
fn open_link(cell: &Cell, server: SocketAddr) -> Result<Link> {
    let address = if cell.tls { TLS_ADDRESS } else { "127.0.0.1" };
    let conditions = LinkConditions {
        round_trip: Duration::from_millis(cell.round_trip_ms),
        mbit: f64::from(cell.mbit),
        slow_start: cell.slow_start,
        cold: cell.cold_ms.map(Duration::from_millis),
        limit: cell.requests_per_second,
        is_encrypted: cell.tls,
    };
    Link::open(address, server, conditions)
}

/// Address of the loopback interface for links with TLS. Dropping it removes the address.
struct TlsAddress;

impl TlsAddress {
    fn assign() -> Result<TlsAddress> {
        let words = ["address", "replace", TLS_ADDRESS, "dev", "lo"];
        helper::output("ip", words.map(OsStr::new))?;
        Ok(TlsAddress)
    }
}

impl Drop for TlsAddress {
    fn drop(&mut self) {
        let mut command = Command::new("ip");
        let _ = command
            .args([
                "address",
                "delete",
                &format!("{TLS_ADDRESS}/32"),
                "dev",
                "lo",
            ])
            .status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_name_chooses_one_cell() {
        let cells = definition().unwrap().cells();
        let count = |name: &str| choose(&cells, Some(&name.to_owned())).unwrap().len();
        assert_eq!(count("links-python-1-20ms-1000M"), 1);
        assert_eq!(count("links-python-1-20ms"), 6);
        assert!(choose(&cells, Some(&"none".to_owned())).is_err());
        assert_eq!(choose(&cells, None).unwrap().len(), cells.len());
    }
}
