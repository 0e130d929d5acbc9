//! Views of the sharing for operators. Looking changes nothing.

use acequia_limits::{Now, Part, RATE_PARTS};

use super::{CellKey, Sharing, cell::View, peer::Peer};
use crate::{
    settings::SETTINGS,
    views::inspect::{PeerView, ReportView},
};

impl Sharing {
    /// The demand for a cell here, and what the others said about it. `has_rate`: they hold parts of a rate.
    pub(crate) fn reports_of(&self, key: CellKey, has_rate: bool, now: Now) -> (u64, Vec<ReportView>) {
        let Some(active_cell) = self.cells.get(key) else {
            return Default::default();
        };
        let known = active_cell
            .views
            .iter()
            .filter(|view| active_cell.view(view.of, now.steady_ns).is_some() && view.at_ns > 0);
        let report = |view: &View| {
            let holds = view.said.holds.get();
            let rate = u32::try_from(holds.min(u64::from(RATE_PARTS))).unwrap_or(RATE_PARTS);
            ReportView {
                of: view.of,
                said_ns: view.at_ns,
                holds: if has_rate { Part { rate, units: 0 } } else { Part { rate: 0, units: holds } },
                left: view.known_left(),
                demand_milli: view.said.demand.get(),
                owed: view.owed(),
            }
        };
        (active_cell.demand.units_milli(), known.map(report).collect())
    }

    /// Other members; shared cells with their demand, at most `cells_max`; and how many more cells there are.
    pub(crate) fn seen(&self, now: Now, cells_max: usize) -> (Vec<PeerView>, Vec<(CellKey, u64)>, u64) {
        let drift_ppm = self.drift_ppm();
        let view = |peer: &Peer| PeerView {
            incarnation: peer.incarnation,
            version_id: peer.version_id,
            heard_ns: peer.heard_ns,
            round_ns: peer.measured_ns(),
            is_reached: peer.is_reached(now.steady_ns, SETTINGS.sharing.reach_ns),
            wall_ahead_ns: peer.reading(now, drift_ppm).map(|reading| (reading.ahead_ns, reading.unsure_ns)),
            lent: 0,
            borrowed: 0,
        };
        let peers = self.peers.values().map(view).collect();
        let demand =
            |key| (key, self.cells.get(key).map_or(0, |active_cell| active_cell.demand.units_milli()));
        let cells = self.cells.keys().take(cells_max).map(demand).collect();
        (peers, cells, self.cells.len().saturating_sub(cells_max) as u64)
    }
}
