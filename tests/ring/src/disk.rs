//! A disk that writes batches in order. A crash loses unfinished batches, and may tear the current one.

use std::collections::{BTreeMap, VecDeque};

use acequia_limits::{CellTag, LimitId};
use acequia_node::{CellRecord, Row};

/// The rows that are certainly on a disk.
pub type Rows = BTreeMap<(LimitId, CellTag), CellRecord>;

/// A disk and the batches that wait for it.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The rows that a process finds when it starts.
    pub rows: Rows,
    /// Batches that were taken but not yet written.
    pub waiting: VecDeque<(u64, Vec<Row>)>,
    /// Whether reads fail for now.
    pub is_unreadable: bool,
}

impl Disk {
    /// Writes the oldest batch. Returns its number.
    pub fn write(&mut self) -> Option<u64> {
        let (batch, rows) = self.waiting.pop_front()?;
        self.apply(rows);
        Some(batch)
    }

    /// The machine stops after it has written `whole` more batches, and the first `torn` rows of the next
    /// one.
    pub fn crash(&mut self, whole: usize, torn: usize) {
        for _ in 0..whole {
            self.write();
        }
        if let Some((_, mut rows)) = self.waiting.pop_front() {
            rows.truncate(torn);
            self.apply(rows);
        }
        self.waiting.clear();
    }

    /// The rows of one limit.
    pub fn rows_of(&self, limit: LimitId) -> Vec<Row> {
        let all = (limit, CellTag(0))..=(limit, CellTag(u128::MAX));
        let row = |((limit, tag), state): (&(LimitId, CellTag), &CellRecord)| Row {
            limit: *limit,
            tag: *tag,
            state: Some(state.clone()),
        };
        self.rows.range(all).map(row).collect()
    }

    fn apply(&mut self, rows: Vec<Row>) {
        for row in rows {
            self.put(row);
        }
    }

    /// Writes one row at once.
    pub fn put(&mut self, row: Row) {
        match row.state {
            Some(state) => self.rows.insert((row.limit, row.tag), state),
            None => self.rows.remove(&(row.limit, row.tag)),
        };
    }
}
