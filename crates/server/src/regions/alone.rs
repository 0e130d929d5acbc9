//! A node that stands alone takes no orders: its limits are in its config file. It says what to write there instead.

use acequia_limits::{Descriptor, Limit, limit::LimitSpec};

use super::{
    authority::Ordered,
    order::{Order, OrderFault, Use, ordered_limit},
    overrides,
};
use crate::worker::Shared;

/// What an order about a limit's numbers comes to in the file of a node that stands alone, as the fault that refuses it.
pub(super) fn refuse(shared: &Shared, order: &Order, ordered: &Ordered) -> OrderFault {
    const ALONE: &str =
        "this node stands alone: its limits are in its config file, and change when that does";
    let (Order::Budget { domain, name, .. }
    | Order::Grant { domain, name, .. }
    | Order::Reset { domain, name, .. }) = order
    else {
        return OrderFault::NotYet(ALONE.to_owned());
    };
    let now = shared.clock.now();
    let catalogue = shared.node.catalogue();
    let is_it = |spec: &LimitSpec| spec.domain == *domain && spec.name == *name;
    let mut active = catalogue.limits.iter().filter(|active| active.is_in_force(now.wall_ns));
    let Some(before) = active.find(|active| is_it(&active.limit.spec)).map(|active| &active.limit.spec)
    else {
        return OrderFault::NotFound(format!("no limit {domain}/{name}: see `acequia budget list`"));
    };
    let used = |limit: &Limit, cell: &Descriptor<'_>| {
        let found = shared.node.cell_named(limit.id, cell, now)?;
        let holding = &found.view.holding;
        let units = holding.effective.units.saturating_sub(holding.left);
        let words = format!("this node {units}");
        Some(Use { algorithm: found.view.algorithm, window_ends_ns: found.window_ends_ns, units, words })
    };
    let about = (ordered.reason.as_str(), ordered.name.as_str());
    let (after, said) = match ordered_limit(order, before, about, &used, now.wall_ns) {
        Ok(found) => found,
        Err(fault) => return fault,
    };
    let known = said.changes.iter().map(|line| format!("{line}; but ")).collect::<String>();
    let new = overrides::written_new(before, &after);
    OrderFault::NotYet(if new.is_empty() {
        format!("{ALONE}. Write the numbers into {domain}/{name} there")
    } else {
        format!(
            "{known}{ALONE}. Write this in front of the `overrides` of {domain}/{name} there: [{}]",
            new.join(", ")
        )
    })
}
