//! A window of 200 000 units and ten nodes: how much is used, and how many calls this takes.

use acequia_rights::pool::{
    Generation, Taker, Window,
    window::{Take, Total, WindowBalance},
};

use super::granting;
use crate::loans::random::Random;

const TOTAL: u64 = 200_000;
const NODES: u64 = 10;

/// Units used, and calls made.
struct Use {
    used: u64,
    calls: u64,
    denied_first_at: u64,
}

/// Requests come one by one to nodes drawn by weight, until twice the window was asked for. A node asks for
/// more when half of its last grant is left. It asks for as much as it spends in a thousand of all requests,
/// and waits for the reply only when it has nothing.
fn play(seed: u64, weights: [u64; NODES as usize]) -> Use {
    let mut random = Random::new(seed);
    let mut pool = Window::default();
    let mut purses = [(WindowBalance::default(), 0_u64, 0_u64); NODES as usize];
    let all: u64 = weights.iter().sum();
    let mut sum = Use { used: 0, calls: 0, denied_first_at: 0 };
    for asked in 0..2 * TOTAL {
        let mut drawn = random.below(all);
        let at = weights.iter().position(|weight| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        });
        let at = at.expect("weights");
        let (balance, chunk, spent) = &mut purses[at];
        *spent += 1;
        if balance.left() <= *chunk / 2 {
            let needed = u64::from(balance.left() == 0);
            let wanted = (*spent * 1_000 / (asked + 1) + 1).max(2 * *chunk);
            let take = Take {
                taker: Taker { node: at as u16 + 1, process_number: 1, call: asked + 1 },
                taken: balance.taken(),
                returned: 0,
                wanted,
                needed,
                reserved: 0,
                total: Total::Open(TOTAL),
                begins_us: 0,
                drops_us: u64::MAX,
            };
            let took = pool.take(&take, &granting(Generation::default(), 0)).expect("an answer");
            *chunk = took.taken - balance.taken();
            balance.took(took.taken);
            // A node that was told that nothing is left does not ask again.
            sum.calls += u64::from(*chunk > 0);
        }
        match balance.spend(1) {
            true => sum.used += 1,
            false if sum.denied_first_at == 0 => sum.denied_first_at = sum.used,
            false => {}
        }
    }
    sum
}

#[test]
fn many_nodes_use_nearly_a_whole_window_in_few_calls() {
    let even = play(1, [1; NODES as usize]);
    let mut weights = [1; NODES as usize];
    weights[0] = 81;
    let skewed = play(2, weights);
    for (name, of) in [("ten equal nodes", &even), ("one node with 90 %", &skewed)] {
        let percent = |units: u64| units as f64 * 100.0 / TOTAL as f64;
        let calls = of.used / of.calls;
        let (used, first) = (percent(of.used), percent(of.denied_first_at));
        println!("{name}: {used:.2} % used, {first:.2} % before the first denial, {calls} decisions a call");
    }
    assert!(even.used * 1_000 >= TOTAL * 990, "{}", even.used);
    assert!(skewed.used * 1_000 >= TOTAL * 970, "{}", skewed.used);
    assert!(even.used >= 200 * even.calls, "{} calls", even.calls);
}
