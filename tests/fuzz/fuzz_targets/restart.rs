//! A region starts on a changed copy of its disk: cells, loans, rights in windows, its own record (`MEMORY`)
//! and the versions of the catalogue (`VERSIONS`). The node either continues from the disk or reports why
//! not, and then serves.
#![no_main]

use std::sync::{Arc, LazyLock};

use acequia_fuzz::{
    place::{self, Disk, MS, Place, S},
    seeds,
};
use acequia_limits::{CellTag, LimitId, Now};
use acequia_node::{CellRecord, Node, journal};
use acequia_rights::MemberId;
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

#[derive(Arbitrary, Debug)]
enum Edit {
    /// Overwrites bytes in a row.
    Put { row: u8, at: u16, bytes: [u8; 2] },
    /// Replaces a number by the largest of its type.
    Huge { row: u8, at: u16 },
    /// Inserts or removes bytes.
    Splice { row: u8, at: u16, remove: u8, put: Vec<u8> },
    /// Removes a row.
    Lose { row: u8 },
    /// Replaces a row by another.
    Swap { row: u8, with: u8 },
    /// Replaces the node's own record, or that of the versions, by any bytes.
    Record { versions: bool, bytes: Vec<u8> },
}

#[derive(Arbitrary, Debug)]
struct Input {
    region: u8,
    crashed: bool,
    edits: Vec<Edit>,
    steps: Vec<(u8, u8)>,
}

type Rows = Vec<((LimitId, CellTag), Vec<u8>)>;

/// The disks of the regions, and their last frames.
static HISTORY: LazyLock<(Vec<Rows>, Vec<Vec<u8>>)> = LazyLock::new(|| {
    let (places, mut wire) = place::history();
    let bytes = |kept: &CellRecord| postcard::to_stdvec(kept).expect("a row");
    let rows = |place: &Place| place.disk.iter().map(|(key, kept)| (*key, bytes(kept))).collect();
    (places.iter().map(rows).collect(), wire.split_off(wire.len() - 40))
});

fuzz_target!(init: seeds::write(|| seeds::random(24, 256)), |input: Input| {
    let region = u16::from(input.region) % place::REGIONS;
    let mut rows = HISTORY.0[usize::from(region)].clone();
    input.edits.iter().take(8).for_each(|edit| apply(edit, &mut rows));
    let disk: Disk =
        rows.iter().filter_map(|(key, bytes)| Some((*key, postcard::from_bytes(bytes).ok()?))).collect();

    let mut now = Now::at(place::START + 4 * S);
    let node = Arc::new(Node::new(place::config(Some(region), input.crashed.then_some(now))));
    if node.resume_home(Vec::new(), now, |id| place::rows(&disk, id)).is_err() {
        return;
    }
    (0..place::REGIONS).for_each(|other| node.meet(place::incarnation(other)));
    let mut place = Place { asker: node.asker(), node, disk };
    for (number, (what, much)) in input.steps.iter().take(24).enumerate() {
        match what % 5 {
            0 => drop(place.ask(place::TO[number % 10], "a", u64::from(*much), now)),
            1 => drop(place.ask(place::TO[usize::from(*much) % 10], "b", 1, now)),
            2 => place.flush(),
            3 => {
                let bytes = &HISTORY.1[(number + usize::from(*much)) % HISTORY.1.len()];
                let from = place::header_of(bytes).map_or(MemberId(0), |header| header.incarnation.member);
                let _ = place.node.handle(from, bytes, now);
            }
            _ => now = now.later(u64::from(*much) * u64::from(*much) * MS),
        }
        let disk = &place.disk;
        let _ = place.node.tick(now, |id| Some(place::rows(disk, id)));
        while place.node.poll(now).is_some() {}
    }
    place.node.membership(now);
    (0..acequia_node::SHARDS).for_each(|shard| place.node.sweep(shard, now));
    place.flush();
    place.node.close(now, drop);
});

fn apply(edit: &Edit, rows: &mut Rows) {
    let Some(last) = rows.len().checked_sub(1) else { return };
    let place = |row: u8| usize::from(row) % (last + 1);
    match edit {
        Edit::Put { row, at, bytes } => {
            let kept = &mut rows[place(*row)].1;
            let at = usize::from(*at) % kept.len();
            kept.iter_mut().skip(at).zip(bytes).for_each(|(old, new)| *old = *new);
        }
        Edit::Huge { row, at } => {
            let kept = &mut rows[place(*row)].1;
            let at = usize::from(*at) % kept.len();
            // The number at this place, to its last byte.
            let end =
                kept[at..].iter().position(|byte| *byte < 0x80).map_or(kept.len(), |more| at + more + 1);
            let huge: &[u8] = &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
            kept.splice(at..end, huge.iter().copied());
        }
        Edit::Splice { row, at, remove, put } => {
            let kept = &mut rows[place(*row)].1;
            let at = usize::from(*at) % kept.len();
            let end = (at + usize::from(*remove)).min(kept.len());
            kept.splice(at..end, put.iter().copied());
            if kept.is_empty() {
                kept.push(0);
            }
        }
        Edit::Lose { row } => drop(rows.remove(place(*row))),
        Edit::Swap { row, with } => {
            let other = rows[place(*with)].1.clone();
            rows[place(*row)].1 = other;
        }
        Edit::Record { versions, bytes } => {
            let of = if *versions { journal::VERSIONS } else { journal::MEMORY };
            let Some(row) = rows.iter_mut().find(|(key, _)| key.0 == of) else { return };
            // A row ends with its record, after the record's length.
            let is_length = |at: &usize| row.1[*at] == (row.1.len() - at - 1) as u8;
            if let Some(at) = (0..row.1.len()).find(is_length) {
                row.1.truncate(at);
                row.1 = postcard::to_extend(bytes, std::mem::take(&mut row.1)).expect("bytes");
            }
        }
    }
}
