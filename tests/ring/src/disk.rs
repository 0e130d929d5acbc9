//! A disk that writes batches in order, loses what it was not done with, and tears the batch it was at.

use std::collections::{BTreeMap, VecDeque};

use acequia_limits::{CellTag, LimitId};
use acequia_node::{CellRecord, Row};

/// What is surely on a disk.
pub type Rows = BTreeMap<(LimitId, CellTag), CellRecord>;

/// A disk and what waits for it.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// What a process finds when it starts.
    pub rows: Rows,
    /// Batches that were taken and are not there yet.
    pub waiting: VecDeque<(u64, Vec<Row>)>,
    /// Whether reading it fails for now.
    pub is_unreadable: bool,
}

impl Disk {
    /// The oldest batch is written; gives its number.
    pub fn write(&mut self) -> Option<u64> {
        let (batch, rows) = self.waiting.pop_front()?;
        self.apply(rows);
        Some(batch)
    }

    /// The machine stops: `whole` more batches were written, and of the next one the first `torn` rows.
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

    /// One row, at once.
    pub fn put(&mut self, row: Row) {
        match row.state {
            Some(state) => self.rows.insert((row.limit, row.tag), state),
            None => self.rows.remove(&(row.limit, row.tag)),
        };
    }
}
