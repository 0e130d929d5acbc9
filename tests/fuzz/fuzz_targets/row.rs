//! One row of the journal. The target decodes the bytes that `store::Journal` keeps of a cell. It then starts a
//! node with the row, under limits of every algorithm.
#![no_main]

use std::sync::Arc;

use acequia_fuzz::{memory, place, seeds};
use acequia_limits::{CellTag, LimitId, Now};
use acequia_node::{CellRecord, Node, Row, regions};
use libfuzzer_sys::fuzz_target;

/// A tag of the table, and a tag of the shared cells.
const TAGS: [u128; 2] = [12 << 120 | 34, u128::MAX - 3];

fuzz_target!(init: seeds::write(seeds), |bytes: &[u8]| {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let (read, peak) = memory::peak_of(|| postcard::from_bytes::<CellRecord>(bytes));
    assert!(peak <= 16_384 + 512 * bytes.len(), "{peak} bytes for {}", bytes.len());
    let Ok(kept) = read else { return };
    let again = postcard::to_stdvec(&kept).expect("a row that was read");
    assert_eq!(postcard::from_bytes::<CellRecord>(&again).as_ref(), Ok(&kept), "what was read reads back");
    restore(&kept, how & 1 != 0, how & 2 != 0);
});

fn restore(kept: &CellRecord, crashed: bool, shared: bool) {
    let mut now = Now::at(place::START);
    let node = Arc::new(Node::new(place::config(None, crashed.then_some(now))));
    let tag = CellTag(TAGS[usize::from(shared)]);
    let limits = regions::limits_from_bytes(place::LIMITS.as_bytes()).expect("limits");
    node.restore_all(now, |limit| vec![Row { limit, tag, state: Some(kept.clone()) }]);
    node.apply(limits, now, |limit: LimitId| vec![Row { limit, tag, state: Some(kept.clone()) }])
        .expect("limits that fit");
    let mut asker = node.asker();
    for later in [1, 2 * place::S, 7_200 * place::S] {
        for key in ["a", "b"] {
            let entries = [("to", "all"), ("key", key)];
            let request = acequia_limits::Request::new("shop", &entries);
            asker.check(&request, now, acequia_node::Ask::CHECK);
        }
        now = now.later(later);
        (0..acequia_node::SHARDS).for_each(|shard| node.sweep(shard, now));
    }
    node.close(now, drop);
}

fn seeds() -> Vec<Vec<u8>> {
    let (places, _) = place::history();
    let rows = places.iter().flat_map(|place| place.disk.values());
    rows.map(|kept| [&[0][..], &postcard::to_stdvec(kept).expect("a row")].concat()).collect()
}
