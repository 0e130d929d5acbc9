//! The most frequent cells of a limit, over all asked nodes.

use acequia_api::acequia::v1::{CellCount, ListCellsResponse};
use futures::future::join_all;
use serde::Serialize;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use super::{
    limit_path::read_limit_path,
    operator::{Admin, Fault},
};
use crate::{
    settings::SETTINGS,
    view::picture::{CellRow, Cells},
};

/// Asks all nodes, and sums their counts of each cell. A node that does not list a cell adds nothing to its
/// count.
pub(super) async fn ask(admins: &mut [Admin], limit: &str) -> Cells {
    let path = match read_limit_path(limit) {
        Ok(path) => path,
        Err(fault) => return Cells { fault, ..Cells::default() },
    };
    let path = &path;
    let answers = join_all(admins.iter_mut().map(|admin| admin.list_cells(path))).await;
    merged(answers)
}

fn merged(answers: Vec<Result<ListCellsResponse, Fault>>) -> Cells {
    let mut cells = Cells::default();
    for answer in answers {
        match answer {
            Ok(ListCellsResponse { hottest, offenders, .. }) => {
                add(&mut cells.hottest, hottest);
                add(&mut cells.offenders, offenders);
            }
            Err(fault) if cells.fault.is_empty() => {
                cells.fault = fault.to_string().lines().next().unwrap_or_default().to_owned();
            }
            Err(_) => {}
        }
    }
    // If one node does not know the limit yet, the other nodes know enough.
    if !cells.hottest.is_empty() || !cells.offenders.is_empty() {
        cells.fault.clear();
    }
    for rows in [&mut cells.hottest, &mut cells.offenders] {
        rows.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        rows.truncate(SETTINGS.commands.cells_shown);
    }
    cells
}

fn add(rows: &mut Vec<CellRow>, counts: Vec<CellCount>) {
    for CellCount { key, is_cut, count, error, .. } in counts {
        match rows.iter_mut().find(|row| row.key == key && !is_cut && !row.is_cut) {
            Some(row) => {
                row.count = row.count.saturating_add(count);
                row.error = row.error.saturating_add(error);
            }
            None => rows.push(CellRow { key, is_cut, count, error }),
        }
    }
}

/// Asks nodes about one limit repeatedly, until it is dropped.
pub(super) struct CellsWatch {
    wanted: watch::Sender<Option<String>>,
    seen: watch::Receiver<Option<(String, Cells)>>,
    task: JoinHandle<()>,
}

impl CellsWatch {
    pub(super) fn start(mut admins: Vec<Admin>) -> Self {
        let (wanted, mut limit) = watch::channel(None::<String>);
        let (tell, seen) = watch::channel(None);
        let task = tokio::spawn(async move {
            let mut turns = interval(SETTINGS.commands.cells_every);
            turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    biased;
                    changed = limit.changed() => if changed.is_err() { return },
                    _ = turns.tick() => {}
                }
                let Some(limit) = limit.borrow_and_update().clone() else { continue };
                let cells = ask(&mut admins, &limit).await;
                tell.send_replace(Some((limit, cells)));
            }
        });
        Self { wanted, seen, task }
    }

    /// Watches this limit from now on; `None` stops asking.
    pub(super) fn want(&self, limit: Option<&str>) {
        self.wanted.send_if_modified(|wanted| {
            let is_other = wanted.as_deref() != limit;
            *wanted = limit.map(str::to_owned);
            is_other
        });
    }

    /// The known cells of this limit; empty if another limit is watched.
    pub(super) fn of(&self, limit: &str) -> Cells {
        let seen = self.seen.borrow();
        seen.as_ref().filter(|(of, _)| of == limit).map(|(_, cells)| cells.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
impl CellsWatch {
    /// A receiver that wakes when an answer comes.
    pub(super) fn seen(&self) -> watch::Receiver<Option<(String, Cells)>> {
        self.seen.clone()
    }
}

impl Drop for CellsWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The cells as JSON.
#[derive(Debug, Serialize)]
pub(super) struct CellsJson<'a> {
    limit: &'a str,
    hottest: Vec<CellJson<'a>>,
    offenders: Vec<CellJson<'a>>,
    fault: Option<&'a str>,
}

/// A cell that came between `count - error` and `count` times lately.
#[derive(Debug, Serialize)]
struct CellJson<'a> {
    key: &'a str,
    is_cut: bool,
    count: u64,
    error: u64,
}

impl<'a> CellsJson<'a> {
    pub(super) fn new(limit: &'a str, cells: &'a Cells) -> Self {
        let fault = (!cells.fault.is_empty()).then_some(cells.fault.as_str());
        let rows = |rows: &'a [CellRow]| rows.iter().map(CellJson::new).collect();
        Self { limit, hottest: rows(&cells.hottest), offenders: rows(&cells.offenders), fault }
    }
}

impl<'a> CellJson<'a> {
    fn new(row: &'a CellRow) -> Self {
        Self { key: &row.key, is_cut: row.is_cut, count: row.count, error: row.error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pairs: &[(&str, u64, u64)]) -> Result<ListCellsResponse, Fault> {
        let cell = |(key, count, error): &(&str, u64, u64)| CellCount {
            key: (*key).to_owned(),
            is_cut: key.ends_with('~'),
            count: *count,
            error: *error,
            remaining: 0,
        };
        Ok(ListCellsResponse { offenders: pairs.iter().map(cell).collect(), ..ListCellsResponse::default() })
    }

    #[test]
    fn counts_of_a_cell_from_several_nodes_are_summed() {
        let cells = merged(vec![
            said(&[("k=a", 5, 1), ("k=b", 4, 0), ("k=long~", 3, 0)]),
            Err(Fault::new("no limit here\nmore")),
            said(&[("k=b", 4, 2), ("k=long~", 2, 0)]),
        ]);
        let rows: Vec<_> =
            cells.offenders.iter().map(|row| (row.key.as_str(), row.count, row.error)).collect();
        assert_eq!(rows, [("k=b", 8, 2), ("k=a", 5, 1), ("k=long~", 3, 0), ("k=long~", 2, 0)]);
        assert_eq!(cells.fault, "");
        assert_eq!(merged(vec![Err(Fault::new("no limit here\nmore"))]).fault, "no limit here");
    }
}
