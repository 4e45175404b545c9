//! `tuff dump`: prints every byte of an image, structure by structure.

use super::info::{space_rows_json, space_rows_text};
use crate::image::ImageArgs;
use crate::out::Out;
use crate::text::{escape, put_bytes};
use serde_json::{Map, Value as Json, json};
use std::process::ExitCode;
use tuff_erofs::dump::{Area, Item, Items, Regions, SpaceTable, Value};
use tuff_erofs::{Error, Result};
use tuff_format::Nid;

/// Print every byte of an image, structure by structure
///
/// Structures are printed as fields, bytes that belong to no field in hexadecimal, and data as a digest (the first 128 bits
/// of BLAKE3). Two images with the same dump are identical. A table of space usage follows.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Print only the table of space usage
    #[arg(short, long, conflicts_with = "inode")]
    summary: bool,
    /// Print only the structures of this inode (metabox:N for an inode in the metabox)
    #[arg(short, long, value_name = "NID", value_parser = parse_nid)]
    inode: Option<Nid>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

fn parse_nid(text: &str) -> Result<Nid, String> {
    let (digits, bit) = match text.strip_prefix("metabox:") {
        Some(digits) => (digits, 1 << 63),
        None => (text, 0),
    };
    let number: Result<u64, _> = digits.parse();
    number
        .map(|n| Nid(n | bit))
        .map_err(|_| format!("'{text}' is not an inode number; write 36 or metabox:36"))
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    print(args).map_err(|e| args.image.named(e))
}

fn print(args: &Args) -> Result<ExitCode> {
    let image = args.image.open_unverified()?;
    let mut regions = match args.inode {
        Some(nid) => {
            let inode = image.inode(nid);
            // The user gave the number, so an invalid one is a usage error.
            let inode = inode.map_err(|e| {
                Error::usage(format_args!(
                    "no inode there: {e}; 'tuff ls -i' prints the numbers"
                ))
            })?;
            Regions::of_inode(&image, &inode)
        }
        None => Regions::collect(&image),
    };
    let mut errors = std::mem::take(&mut regions.errors);
    let mut out = Out::new();
    if !args.summary {
        let items = match args.inode {
            Some(_) => Items::of_regions(&image, &regions),
            None => Items::all(&image, &regions),
        };
        for item in items {
            if let Some(e) = &item.error {
                errors.push(Error::corrupt(
                    format_args!("{} at {:#x}", item.name, item.start),
                    e,
                ));
            }
            if args.json {
                out.json(&item_json(&item))?;
            } else {
                item_text(&item, &mut out)?;
            }
        }
    }
    if args.inode.is_none() {
        for table in SpaceTable::collect(&image, &regions.list) {
            if args.json {
                out.json(&table_json(&table))?;
            } else {
                table_text(&table, &mut out)?;
            }
        }
    }
    out.finish()?;
    if errors.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let first = errors.remove(0);
    for e in &errors {
        eprintln!("tuff: {e}");
    }
    Err(first)
}

fn area_name(area: Area) -> String {
    match area {
        Area::Store(0) => String::new(),
        Area::Store(n) => format!("device {n}, "),
        Area::Metabox => "metabox, ".to_owned(),
    }
}

fn item_text(item: &Item, out: &mut Out) -> Result<()> {
    let mut line = format!(
        "{}{:#x}..{:#x} {}",
        area_name(item.area),
        item.start,
        item.end,
        item.name
    );
    put_fields(&item.fields, &mut line);
    out.line(line)?;
    for row in &item.rows {
        let mut line = "   ".to_owned();
        put_fields(row, &mut line);
        out.line(line)?;
    }
    if let Some(e) = &item.error {
        out.line(format_args!("    broken: {e}"))?;
    }
    let Some(raw) = &item.raw else {
        return Ok(());
    };
    for (i, bytes) in raw.chunks(16).enumerate() {
        if bytes.iter().all(|b| *b == 0) && i > 0 {
            // Lines of zeros are omitted; the range implies them.
            continue;
        }
        let at = item.start + 16 * i as u64;
        let shown: String = bytes
            .iter()
            .map(|b| {
                if b.is_ascii_graphic() || *b == b' ' {
                    char::from(*b)
                } else {
                    '.'
                }
            })
            .collect();
        let pairs: Vec<String> = bytes.chunks(2).map(hex::encode).collect();
        out.line(format_args!(
            "    {at:08x}: {:<39}  {shown}",
            pairs.join(" ")
        ))?;
    }
    Ok(())
}

fn put_fields(fields: &[(&'static str, Value)], line: &mut String) {
    for (name, value) in fields {
        *line += &format!(" {name}=");
        match value {
            Value::Number(n) => *line += &n.to_string(),
            Value::Signed(n) => *line += &n.to_string(),
            Value::Hex(n) => *line += &format!("{n:#x}"),
            Value::Text(text) if text.contains(' ') => *line += &format!("\"{text}\""),
            Value::Text(text) => *line += text,
            Value::Bytes(bytes) => {
                line.push('"');
                let mut text = String::new();
                escape(bytes, &mut text);
                *line += &text.replace('"', "\\\"");
                line.push('"');
            }
        }
    }
}

fn fields_json(fields: &[(&'static str, Value)]) -> Map<String, Json> {
    let mut out = Map::new();
    for (name, value) in fields {
        match value {
            Value::Number(n) | Value::Hex(n) => _ = out.insert((*name).to_owned(), (*n).into()),
            Value::Signed(n) => _ = out.insert((*name).to_owned(), (*n).into()),
            Value::Text(text) => _ = out.insert((*name).to_owned(), text.as_str().into()),
            Value::Bytes(bytes) => put_bytes(&mut out, name, bytes),
        }
    }
    out
}

fn item_json(item: &Item) -> Json {
    let mut object = json!({
        "device": area_json(item.area), "start": item.start, "end": item.end, "structure": item.name,
        "fields": fields_json(&item.fields),
    });
    if !item.rows.is_empty() {
        object["rows"] = item
            .rows
            .iter()
            .map(|r| Json::Object(fields_json(r)))
            .collect();
    }
    if let Some(raw) = &item.raw {
        object["raw_hex"] = hex::encode(raw).into();
    }
    if let Some(e) = &item.error {
        object["error"] = e.as_str().into();
    }
    object
}

fn area_json(area: Area) -> Json {
    match area {
        Area::Store(n) => n.into(),
        Area::Metabox => "metabox".into(),
    }
}

fn table_text(table: &SpaceTable, out: &mut Out) -> Result<()> {
    out.line(format_args!("{}space:", area_name(table.area)))?;
    space_rows_text(table, out)
}

fn table_json(table: &SpaceTable) -> Json {
    let rows = space_rows_json(table);
    json!({"structure": "space", "device": area_json(table.area), "bytes": table.size, "rows": rows})
}
