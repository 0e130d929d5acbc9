//! Rows in memory.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use acequia_limits::{CellTag, LimitId};
use acequia_node::{CellRecord, Row};

use crate::{Store, StoreError};

/// A store that lasts as long as it is held.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Contents>);

#[derive(Clone, Debug, Default)]
struct Contents {
    rows: BTreeMap<(LimitId, CellTag), CellRecord>,
    values: BTreeMap<String, Vec<u8>>,
}

impl MemoryStore {
    /// A second store with the present content of this one.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self(Mutex::new(self.contents().clone()))
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn commit(&self, rows: &[Row], values: &[(&str, Option<&[u8]>)]) -> Result<(), StoreError> {
        let mut contents = self.contents();
        for row in rows {
            match &row.state {
                Some(state) => contents.rows.insert((row.limit, row.tag), state.clone()),
                None => contents.rows.remove(&(row.limit, row.tag)),
            };
        }
        for (name, value) in values {
            match value {
                Some(value) => contents.values.insert((*name).to_owned(), value.to_vec()),
                None => contents.values.remove(*name),
            };
        }
        Ok(())
    }

    fn rows(&self, limit: LimitId) -> Result<Vec<Row>, StoreError> {
        let all = (limit, CellTag(0))..=(limit, CellTag(u128::MAX));
        let row = |(&(limit, tag), state): (&(LimitId, CellTag), &CellRecord)| Row {
            limit,
            tag,
            state: Some(state.clone()),
        };
        Ok(self.contents().rows.range(all).map(row).collect())
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.contents().values.get(name).cloned())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_memory_store_keeps_the_contract_of_a_store() {
        crate::contract::check(&super::MemoryStore::default());
    }
}
