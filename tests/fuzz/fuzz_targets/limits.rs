//! Limits in JSON, as versions and stored files carry them, and a node that uses them.
#![no_main]

use std::sync::Arc;

use acequia_fuzz::{memory, place, seeds};
use acequia_limits::{Charge, Limit, Mode, Now, Request};
use acequia_node::{Ask, Node, Outcome, regions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: seeds::write(seeds), |bytes: &[u8]| {
    let (read, peak) = memory::peak_of(|| regions::limits_from_bytes(bytes));
    assert!(peak <= 65_536 + 1_024 * bytes.len(), "{peak} bytes for {}", bytes.len());
    let Ok(limits) = read else { return };
    let specs: Vec<_> = limits.iter().map(|limit| limit.spec.clone()).collect();
    let again = regions::limits_to_bytes(&specs).expect("limits that were read");
    assert_eq!(regions::limits_from_bytes(&again).as_ref(), Ok(&limits), "what was read reads back");
    serve(limits);
});

/// Puts the limits in force, asks, and lets time pass.
fn serve(limits: Vec<Limit>) {
    let node = Arc::new(Node::new(place::config(None, None)));
    let mut now = Now::at(place::START);
    if node.apply(limits, now, |_| Vec::new()).is_err() {
        return;
    }
    let mut asker = node.asker();
    for later in [1, place::S, 3_600 * place::S, 401 * 86_400 * place::S] {
        // At one instant no cell admits more than its budget.
        let mut charged = std::collections::BTreeMap::new();
        for cost in [1, 1, 3, u64::MAX, 0, 1 << 40, 1] {
            let entries = [("to", "all"), ("key", "b"), ("ip", "10.1.2.3"), ("route", "/report/a")];
            let mut request = Request::new("shop", &entries);
            request.cost = cost;
            asker.check(&request, now, Ask::CHECK);
            let (answer, catalogue) = asker.last();
            for said in answer.limits.iter().filter(|_| answer.allowed) {
                let spec = &catalogue.limits[said.limit as usize].limit.spec;
                let counts = spec.mode == Mode::Enforce && spec.charge == Charge::Together;
                if counts && said.outcome == Outcome::Allow {
                    let units: &mut u64 = charged.entry((said.limit, said.tag)).or_default();
                    *units = units.saturating_add(said.units);
                    assert!(*units <= said.budget, "{units} of {}", said.budget);
                }
            }
        }
        now = now.later(later);
        (0..4).for_each(|shard| node.sweep(shard, now));
    }
    let mut rows = 0;
    node.close(now, |_| rows += 1);
    assert!(rows as u64 <= node.usage().cells + node.usage().overflowing);
}

fn seeds() -> Vec<Vec<u8>> {
    let specs = place::specs();
    let mut seeds: Vec<Vec<u8>> =
        specs.into_iter().map(|spec| serde_json::to_vec(&[spec]).expect("JSON")).collect();
    let more = r#"[{"name":"all","domain":"shop","when":{"route":["/report/*","!/report/tiny"],"key":"b"},
"by":["key",{"ip":"ip","v4":24,"v6":64}],"cost":2,"leaky_bucket":{"rate":"5/10s","queue":9,"no_wait":"allow"},
"mode":"shadow","charge":"each","unlimited":{"key":"gold"},
"overrides":[{"key":"b","rate":"7/s","queue":"30","until":"2027-01-01T00:00:00Z","why":"sale"}]}]"#;
    seeds.push(more.as_bytes().to_vec());
    seeds
}
