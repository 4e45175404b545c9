//! Conversion of stated places of data in bases.

use super::member::Member;
use super::types::{BaseData, BaseFragment, BasePiece, BaseTail};
use crate::pack::address::GrainAddr;
use crate::pack::piece::ShortPiece;
use crate::source::placed::{GROUP_SPACE, PlacedCluster, PlacedData, PlacedPart};
use crate::{Error, Place, Result};
use tuff_format::cluster::HeadKind;

/// Converts the place of the data of a file of `size` bytes.
pub(super) fn data(members: &[Member], size: u64, data: &PlacedData) -> Result<BaseData> {
    let PlacedData { clusters, tail } = data;
    let tail_len = tail.as_ref().map_or(0, |tail| tail.len);
    if sum(clusters).checked_add(tail_len) != Some(size) {
        return Err(inconsistent("clusters hold another number of bytes"));
    }
    let fragment = tail
        .as_ref()
        .map(|tail| fragment(members, tail))
        .transpose()?;
    let (fragment, pieces) = match fragment {
        Some(fragment) if clusters.is_empty() => return Ok(BaseData::Fragment(fragment)),
        fragment => (fragment, clusters),
    };
    let algorithm = pieces.iter().find_map(|cluster| cluster.algorithm);
    let head = |id| (Some(id) == algorithm).then_some(HeadKind::Head1);
    let mut pieces: Vec<BasePiece> = Vec::with_capacity(clusters.len() + 1);
    for (i, cluster) in clusters.iter().enumerate() {
        let is_last = fragment.is_none() && i + 1 == clusters.len();
        pieces.push(piece(members, cluster, is_last, &head)?);
    }
    let tail = match fragment {
        None => BaseTail::Cluster,
        Some(fragment) => {
            let len =
                u32::try_from(tail_len).map_err(|_| inconsistent("a tail that is too long"))?;
            let own = ShortPiece::own(len as usize, 0, HeadKind::Head1);
            pieces.push((GrainAddr::NONE, own));
            BaseTail::Fragment(fragment)
        }
    };
    Ok(BaseData::Encoded {
        algorithm: algorithm
            .or(members.first().and_then(|m| m.packed))
            .unwrap_or(0),
        pieces,
        tail,
    })
}

fn fragment(members: &[Member], part: &PlacedPart) -> Result<BaseFragment> {
    let (own, second) = members
        .first()
        .map_or((None, None), |m| (m.packed, m.second));
    let kind = |id: u8| match Some(id) {
        id if id == own => Some(HeadKind::Head1),
        id if id == second => Some(HeadKind::Head2),
        _ => None,
    };
    let end = part.start.checked_add(sum(&part.clusters));
    let part_end = part.offset.checked_add(part.len);
    let holds = end.zip(part_end).is_some_and(|(end, part_end)| {
        part.start <= part.offset && part_end <= end && end <= GROUP_SPACE
    });
    if !holds || part.len == 0 {
        return Err(inconsistent("a group does not hold the part"));
    }
    let first = u64::from(part.group) * GROUP_SPACE;
    let (mut at, mut pieces) = (first + part.start, Vec::with_capacity(part.clusters.len()));
    for cluster in &part.clusters {
        pieces.push((at, piece(members, cluster, false, &kind)?));
        at += u64::from(cluster.content);
    }
    Ok(BaseFragment {
        offset: first + part.offset,
        pieces,
    })
}

fn sum(clusters: &[PlacedCluster]) -> u64 {
    clusters.iter().map(|c| u64::from(c.content)).sum()
}

fn piece(
    members: &[Member],
    cluster: &PlacedCluster,
    is_last: bool,
    head: &dyn Fn(u8) -> Option<HeadKind>,
) -> Result<BasePiece> {
    let member = members.get(usize::from(cluster.base));
    let member = member.ok_or_else(|| inconsistent("a base that does not exist"))?;
    let kind = match cluster.algorithm {
        None => HeadKind::Plain,
        Some(id) => head(id).ok_or_else(|| inconsistent("clusters of three algorithms"))?,
    };
    let len = u64::from(cluster.len);
    let within = member.within(member.grain.size(), cluster.pos, len);
    let (place, grains) = within.ok_or_else(|| inconsistent("a cluster outside of its base"))?;
    let block = member.bits.size();
    let is_short = u64::from(cluster.content) < block && !is_last;
    if is_short || cluster.content == 0 || (kind == HeadKind::Plain && len != block) {
        return Err(inconsistent("a cluster that no index can express"));
    }
    let grains = u16::try_from(grains).map_err(|_| inconsistent("a cluster that is too long"))?;
    let piece = ShortPiece {
        len: cluster.content,
        grains,
        kind,
        partial: false,
        shared: true,
    };
    Ok((GrainAddr::base(place), piece))
}

fn inconsistent(what: &str) -> Error {
    Error::corrupt(Place::image(), what)
}
