//! `tuff-lab campaign`: stress tests of images and volumes.

use tuff_lab::Result;
use tuff_lab::campaigns::stress::{crash, files};
use tuff_lab::record::{Line, Record, RecordWriter};

/// Runs the remaining units, and prints the tables of all records of the folder. Returns false if there are findings.
pub(crate) fn crash(options: &crash::Options) -> Result<bool> {
    let mut writer = RecordWriter::new(&options.out, "crash");
    crash::run(options, &mut |line| {
        if let Line::Sample(sample) = line {
            let (unit, states) = (&sample.cell["unit"], sample.values["states"]);
            eprintln!("{unit}: {states} states");
        }
        writer.write(line)
    })?;
    let record = Record::read(&[&options.out])?;
    print!("{}", tuff_lab::campaigns::report(&record)?);
    Ok(record.failures.is_empty())
}

/// Compares files with a model. Returns false if they differ.
pub(crate) fn files(options: &files::Options) -> Result<bool> {
    Ok(match files::run(options)? {
        Ok(tally) => {
            println!("{tally}: no errors");
            true
        }
        Err(wrong) => {
            println!("{wrong}");
            false
        }
    })
}
