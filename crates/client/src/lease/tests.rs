use std::{sync::atomic::AtomicUsize, thread};

use proptest::prelude::*;
use tokio::time::sleep;
use tonic::{Code, service::Interceptor as _};

use super::*;
use crate::{
    Fallback, Guard, LimitResult, Options, Outcome, Settled,
    fake::{Mode, Node},
    settings::SETTINGS,
};

const DEADLINE: Options = Options { deadline: Duration::from_millis(20) };
/// Long enough for a node in memory to answer. The clock moves only when nothing else does.
const A_MOMENT: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(10);

fn question() -> Question {
    Question::new("shop", [("key", "k1")])
}

/// A lease that first holds 10 units, for 10 s.
fn lease(node: &Node) -> Lease {
    node.client(DEADLINE).lease(question(), LeaseOptions::default()).expect("a lease")
}

/// A lease that holds its first 10 units.
async fn filled(node: &Node) -> Lease {
    let lease = lease(node);
    assert_eq!(lease.try_take(1), LeaseTake::Empty, "nothing is held before it is wanted");
    sleep(A_MOMENT).await;
    assert!(lease.units_left() >= 10, "{lease:?}");
    lease
}

fn take(lease: &Lease, times: u64) -> u64 {
    (0..times).filter(|_| lease.try_take(1) == LeaseTake::Taken).count() as u64
}

#[tokio::test(start_paused = true)]
async fn leased_units_are_handed_out_and_the_rest_is_refunded() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    let held = lease.units_left();
    assert_eq!(node.charged(), held);
    assert_eq!(take(&lease, 3), 3);
    assert_eq!(lease.clone().units_left(), held - 3, "a clone shares what is held");
    assert_eq!(node.books().checks, 1, "nobody was asked again");

    let clone = lease.clone();
    lease.close().await;
    assert_eq!(node.charged(), 3);
    assert_eq!(node.books().commits, [(3, Settled::Done)]);
    assert_eq!(clone.try_take(1), LeaseTake::Empty, "it has ended for all");
    clone.close().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_refunds_the_rest_when_dropped() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    take(&lease, 2);
    let clone = lease.clone();
    drop(lease);
    sleep(A_MOMENT).await;
    assert!(node.charged() > 2, "a clone still holds it");
    drop(clone);
    sleep(A_MOMENT).await;
    assert_eq!(node.charged(), 2);
}

#[tokio::test(start_paused = true)]
async fn at_steady_demand_a_lease_is_never_empty_and_refills_once_a_refresh() {
    let node = Node::of(1_000_000);
    let lease = filled(&node).await;
    let (mut taken, mut empty_late) = (0, 0);
    for millisecond in 0..20_000 {
        match lease.try_take(1) {
            LeaseTake::Taken => taken += 1,
            // The lease learns the demand in the first second.
            LeaseTake::Empty => empty_late += u64::from(millisecond > 1_000),
            LeaseTake::Denied { .. } => panic!("there is plenty"),
        }
        sleep(A_MOMENT).await;
    }
    assert_eq!(empty_late, 0);
    let asked = node.books().reserves.len();
    assert!((15..=45).contains(&asked), "{asked} calls in 20 s: {:?}", node.books().reserves);
    let last = *node.books().reserves.last().expect("asked");
    assert!((1_000..=2_000).contains(&last), "{last} for a demand of 1000 a second");
    lease.close().await;
    assert_eq!(node.charged(), taken);
}

#[tokio::test(start_paused = true)]
async fn an_unused_lease_is_refunded_before_it_lapses() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    take(&lease, 4);
    // The lease asks once more, because some units were wanted, and not again.
    sleep(TTL * 3).await;
    assert_eq!(lease.units_left(), 0);
    assert_eq!(node.charged(), 4);
    assert!(node.books().commits.iter().all(|(_, settled)| *settled == Settled::Done));
    let checks = node.books().checks;
    assert!(checks <= 2, "{checks}");
    sleep(TTL * 10).await;
    assert_eq!(node.books().checks, checks, "nobody wants anything");
}

#[tokio::test(start_paused = true)]
async fn no_unit_is_handed_out_later_than_the_ttl_after_its_request() {
    let node = Node::of(1_000);
    let sent = Instant::now();
    let lease = filled(&node).await;
    take(&lease, 1);
    node.set(Mode::Gone);
    // Held units stay valid without a node, until they expire.
    let expires = sent + TTL - TTL / 32;
    tokio::time::sleep_until(expires - Duration::from_millis(2)).await;
    assert_eq!(lease.try_take(1), LeaseTake::Taken);
    tokio::time::sleep_until(expires + A_MOMENT).await;
    assert_eq!(lease.try_take(1), LeaseTake::Empty);
    assert_eq!(lease.units_left(), 0);
    sleep(TTL).await;
    assert_eq!(lease.settlements_lost(), 1);
    assert!(node.charged() > 2, "what could not be given back counts as spent");
}

#[tokio::test(start_paused = true)]
async fn expired_units_are_not_handed_out_even_if_no_task_runs() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    let held = lease.units_left();
    // The clock moves, and no task runs before the next await.
    let late = Instant::now() + TTL;
    assert_eq!(lease.shared.balance.take(1, || late), TakeResult::Short);
    assert_eq!(lease.units_left(), held);
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_repeated_locally_until_its_retry_time() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    node.set(Mode::Denies(Some(2_000)));
    let held = lease.units_left();
    assert_eq!(take(&lease, held), held, "what is held is handed out all the same");
    assert_eq!(lease.try_take(1), LeaseTake::Empty, "a node has yet to say no");
    sleep(A_MOMENT).await;
    let LeaseTake::Denied { retry_after: Some(first) } = lease.try_take(1) else { panic!("denied") };
    assert!(first <= Duration::from_secs(2) && first > Duration::from_millis(1_900), "{first:?}");
    let checks = node.books().checks;
    sleep(Duration::from_secs(1)).await;
    let LeaseTake::Denied { retry_after: Some(second) } = lease.try_take(1) else { panic!("denied") };
    assert!(second < first);
    let answer = lease.check(1).await.expect("in memory");
    assert!(!answer.allowed);
    assert_eq!((answer.limit.as_str(), answer.reason()), ("per-key", Reason::OverLimit));
    assert!(answer.retry_after_ms.expect("a wait") <= 1_000);
    assert_eq!(node.books().checks, checks, "nobody was asked");

    node.set(Mode::Answers);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        lease.try_take(1),
        LeaseTake::Taken,
        "it was wanted, so it was asked for when the wait was over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_long_denial_is_checked_early_while_units_are_wanted() {
    let node = Node::of(1_000);
    node.set(Mode::Denies(Some(30 * 86_400_000)));
    let lease = lease(&node);
    lease.try_take(1);
    sleep(A_MOMENT).await;
    assert!(matches!(lease.try_take(1), LeaseTake::Denied { retry_after: Some(_) }));
    node.set(Mode::Answers);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(lease.try_take(1), LeaseTake::Taken);
}

#[tokio::test(start_paused = true)]
async fn a_denial_without_a_retry_time_is_checked_again_after_a_while() {
    let node = Node::of(0);
    let lease = lease(&node);
    lease.try_take(1);
    for _ in 0..10 {
        sleep(A_MOMENT).await;
        assert_eq!(lease.try_take(1), LeaseTake::Denied { retry_after: None });
    }
    assert_eq!(node.books().checks, 1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(node.books().checks, 2, "it was wanted");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.books().checks, 2, "and then no more");
}

#[tokio::test(start_paused = true)]
async fn a_lost_commit_counts_as_spent() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    let held = lease.units_left();
    take(&lease, 1);
    node.set(Mode::LosesCommits);
    lease.clone().close().await;
    assert_eq!(node.charged(), held);
    assert_eq!(lease.settlements_lost(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_is_lost_counts_once() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    take(&lease, 1);
    node.set(Mode::LosesAnswers);
    lease.close().await;
    assert_eq!(node.charged(), 1);
    assert_eq!(node.books().commits, [(1, Settled::Done), (1, Settled::Before), (1, Settled::Before)]);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_whose_answer_is_lost_is_charged_once_and_found_again() {
    let node = Node::of(1_000);
    node.set(Mode::LosesAnswers);
    let lease = lease(&node);
    lease.try_take(1);
    sleep(Duration::from_secs(1)).await;
    assert!(lease.is_unanswered());
    let charged = node.charged();
    assert!(charged > 0);
    assert!(node.books().checks > 1);
    assert_eq!(node.books().reserves.len(), 1, "it was asked by its name");
    lease.try_take(1);
    node.set(Mode::Answers);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node.books().commits[0], (0, Settled::Done), "it may be of a window that has ended since");
    assert_eq!(node.charged(), lease.units_left(), "and who waits gets others");
    assert_eq!(lease.try_take(1), LeaseTake::Taken);
    lease.close().await;
    assert_eq!(node.charged(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_recovered_reservation_is_not_replaced_if_nobody_waits() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    node.set(Mode::LosesAnswers);
    let held = lease.units_left();
    take(&lease, held - held.div_ceil(3) + 1);
    sleep(A_MOMENT).await;
    node.set(Mode::Answers);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node.charged(), held);
    assert_eq!(node.books().reserves.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lease_can_be_closed_while_a_clone_keeps_taking() {
    let node = Node::of(u64::MAX);
    node.books().share = 1;
    let lease = lease(&node);
    let clone = lease.clone();
    let greedy = tokio::spawn(async move {
        for _ in 0..1_000_000 {
            clone.try_take(1);
            tokio::task::yield_now().await;
        }
    });
    while node.books().checks < 100 {
        tokio::task::yield_now().await;
    }
    lease.close().await;
    assert!(!greedy.is_finished(), "it did not wait for their end");
    greedy.abort();
}

#[tokio::test(start_paused = true)]
async fn closing_a_lease_refunds_a_reservation_whose_answer_was_lost() {
    let node = Node::of(1_000);
    node.set(Mode::LosesAnswers);
    let lease = lease(&node);
    lease.try_take(1);
    sleep(A_MOMENT).await;
    assert!(node.charged() > 0);
    node.set(Mode::Answers);
    lease.close().await;
    assert_eq!(node.charged(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_called_only_while_units_are_wanted() {
    for mode in [Mode::Gone, Mode::Hangs] {
        let node = Node::of(1_000);
        node.set(mode);
        let lease = lease(&node);
        assert_eq!(lease.try_take(1), LeaseTake::Empty);
        let error = lease.check(1).await.expect_err("nobody answers");
        assert!(matches!(error, ClientError::Unreachable { .. } | ClientError::Deadline { .. }), "{error}");
        sleep(TTL * 3).await;
        assert!(lease.is_unanswered());
        assert_eq!(node.charged(), 0);
        assert!(!lease.shared.is_wanted.load(Ordering::Relaxed), "nobody wants it any more: {mode:?}");
        node.set(Mode::Answers);
        lease.try_take(1);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(lease.try_take(1), LeaseTake::Taken, "service resumes");
        assert!(!lease.is_unanswered());
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_node_delays_a_call_at_most_to_its_deadline() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    node.set(Mode::Hangs);
    take(&lease, 1_000);
    let begun = Instant::now();
    lease.check(1).await.expect_err("late");
    assert!(begun.elapsed() <= DEADLINE.deadline + A_MOMENT);
    let begun = Instant::now();
    lease.close().await;
    assert!(begun.elapsed() <= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_zero_cost_counts_as_one_and_a_huge_cost_is_checked_at_the_node() {
    let node = Node::of(1_000_000);
    let lease = filled(&node).await;
    let held = lease.units_left();
    assert_eq!(lease.try_take(0), LeaseTake::Taken);
    assert_eq!(lease.units_left(), held - 1, "nothing costs one");
    assert!(lease.check(0).await.expect("in memory").allowed);
    for cost in [100_001, u64::MAX] {
        assert_eq!(lease.try_take(cost), LeaseTake::Empty, "{cost}");
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node.books().checks, 1, "no lease is asked for what it may not hold");
    assert!(lease.check(100_001).await.expect("the node's answer").allowed);
    assert!(!lease.check(u64::MAX).await.expect("the node's answer").allowed);
    assert_eq!(node.books().checks, 3);

    // The lease asks for units that it may hold but does not.
    assert_eq!(lease.try_take(50_000), LeaseTake::Empty);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(lease.try_take(50_000), LeaseTake::Taken);
}

#[tokio::test(start_paused = true)]
async fn a_nearly_spent_cell_is_spent_exactly_to_its_last_unit() {
    let node = Node::of(100);
    node.books().share = 7;
    let lease = lease(&node);
    let mut taken = 0;
    for _ in 0..1_000 {
        taken += take(&lease, 1);
        sleep(A_MOMENT).await;
        assert!(taken <= node.charged());
    }
    assert_eq!(taken, 100);
    assert!(matches!(lease.try_take(1), LeaseTake::Denied { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_smaller_refill_does_not_replace_a_larger_balance() {
    let node = Node::of(1_000);
    let lease = filled(&node).await;
    node.books().share = 1;
    let held = lease.units_left();
    let low = held - held.div_ceil(3) + 1;
    assert_eq!(take(&lease, low), low);
    sleep(A_MOMENT).await;
    assert_eq!(node.books().reserves.len(), 2, "little was left, so more was asked for");
    assert_eq!(lease.units_left(), held - low);
    assert_eq!(node.charged(), held, "and the less was given back");
}

#[tokio::test(start_paused = true)]
async fn units_of_a_window_are_not_spent_after_its_end() {
    let node = Node::of(1_000);
    let limit = |algorithm: &str, outcome: Outcome, reset_after_ms| LimitResult {
        algorithm: algorithm.to_owned(),
        outcome: outcome.into(),
        reset_after_ms,
        ..LimitResult::default()
    };
    node.books().template.limits = vec![
        limit("token_bucket", Outcome::Allow, 100),
        limit("quota", Outcome::Unlimited, 100),
        limit("quota", Outcome::Allow, 500_000),
        limit("fixed_window", Outcome::Allow, 2_000),
    ];
    let lease = filled(&node).await;
    sleep(Duration::from_millis(1_970)).await;
    assert_eq!(lease.try_take(1), LeaseTake::Taken);
    node.set(Mode::Gone);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(lease.try_take(1), LeaseTake::Empty);
}

#[tokio::test(start_paused = true)]
async fn a_window_that_ends_now_is_not_leased_or_requested_in_a_loop() {
    let node = Node::of(1_000);
    let algorithm = "fixed_window".to_owned();
    let limit = LimitResult { algorithm, outcome: Outcome::Allow.into(), ..LimitResult::default() };
    node.books().template.limits = vec![limit];
    let lease = lease(&node);
    for _ in 0..100 {
        assert_eq!(lease.try_take(1), LeaseTake::Empty);
        sleep(A_MOMENT).await;
    }
    assert!(node.books().checks <= 7, "{}", node.books().checks);
    assert_eq!(node.charged(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_is_not_leased_and_the_node_paces_every_request() {
    let leaky = LimitResult {
        algorithm: "leaky_bucket".to_owned(),
        outcome: Outcome::Allow.into(),
        ..LimitResult::default()
    };
    for (delay_ms, limits) in [(5, Vec::new()), (0, vec![leaky])] {
        let node = Node::of(1_000);
        node.books().template.delay_ms = delay_ms;
        node.books().template.limits = limits;
        let lease = lease(&node);
        for _ in 0..10 {
            assert_eq!(lease.check(1).await.expect("the node's answer").delay_ms, delay_ms);
            sleep(A_MOMENT).await;
        }
        assert_eq!(node.charged(), 10, "what was reserved went back");
        assert_eq!(node.books().reserves.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn units_that_no_limit_counts_are_handed_out_and_not_settled() {
    let node = Node::of(1_000);
    node.books().template.reason = Reason::NoMatch.into();
    let lease = filled(&node).await;
    assert_eq!(lease.try_take(10), LeaseTake::Taken);
    lease.close().await;
    assert!(node.books().commits.is_empty());
    assert_eq!(node.charged(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_request_is_refused_at_each_check_of_a_lease() {
    let node = Node::of(1_000);
    node.set(Mode::Refuses);
    let lease = lease(&node);
    for _ in 0..100 {
        assert!(matches!(lease.check(1).await, Err(ClientError::Refused { .. })));
        sleep(A_MOMENT).await;
    }
    assert!(!lease.is_unanswered());
}

#[tokio::test(start_paused = true)]
async fn impossible_leases_are_refused() {
    let client = Node::of(1).client(DEADLINE);
    let good = LeaseOptions::default();
    let ms = Duration::from_millis;
    for bad in [
        LeaseOptions { refresh: ms(9), ..good },
        LeaseOptions { refresh: Duration::ZERO, ttl: Duration::ZERO, ..good },
        LeaseOptions { ttl: ms(1_999), ..good },
        LeaseOptions { ttl: ms(3_600_001), ..good },
        LeaseOptions { refresh: Duration::MAX, ttl: Duration::MAX, ..good },
        LeaseOptions { units_min: 0, ..good },
        LeaseOptions { units_min: 11, units_max: 10, ..good },
        LeaseOptions { units_max: LEASE_UNITS_MAX + 1, ..good },
    ] {
        let refused = client.lease(question(), bad.clone()).expect_err("impossible");
        assert!(matches!(refused, ClientError::Refused { .. }), "{bad:?}");
    }
    for named in [
        question().cost(1),
        question().id("a"),
        question().refundable(),
        question().reserve(TTL, crate::Lapse::Keep),
    ] {
        assert!(client.lease(named, good.clone()).is_err());
    }
    for edge in [
        LeaseOptions { refresh: ms(10), ttl: ms(20), units_min: 1, units_max: 1 },
        LeaseOptions { ttl: ms(3_600_000), units_max: LEASE_UNITS_MAX, ..good },
    ] {
        client.lease(question(), edge).expect("possible").close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_uses_the_lease_and_else_the_fallback() {
    let node = Node::of(1_000);
    let lease = lease(&node);
    let mut interceptor =
        LeaseInterceptor::new(lease.clone(), Fallback::Guard(Guard { units_per_second: 1, burst: 1 }));
    let mut call = || interceptor.call(tonic::Request::new(()));

    let early = call().expect_err("on its way");
    assert_eq!(early.code(), Code::Unavailable);
    assert_eq!(early.metadata().get("grpc-retry-pushback-ms").expect("pushback"), "10");
    sleep(Duration::from_millis(10)).await;
    assert!(call().is_ok());

    node.set(Mode::Denies(Some(100)));
    while lease.try_take(1) == LeaseTake::Taken {}
    sleep(A_MOMENT).await;
    let denied = call().expect_err("denied");
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let pushback = denied.metadata().get("grpc-retry-pushback-ms").expect("pushback");
    assert!(pushback.to_str().expect("text").parse::<u64>().expect("a number") <= 100);

    node.set(Mode::Gone);
    sleep(Duration::from_millis(200)).await;
    assert!(call().is_ok(), "the guard's burst");
    let guarded = call().expect_err("the guard is empty");
    assert_eq!(guarded.code(), Code::ResourceExhausted);
    assert_eq!(interceptor.unasked().allowed, 1);

    let mut closed = LeaseInterceptor::new(lease, Fallback::Closed);
    assert_eq!(closed.call(tonic::Request::new(())).expect_err("closed").code(), Code::Unavailable);
}

/// Four threads take as fast as they can, in real time, while the keeper refills and a fifth thread closes
/// the lease.
#[test]
fn threads_together_take_exactly_the_units_charged() {
    const TAKERS: usize = 4;
    const BUDGET: u64 = 300_000;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let (node, lease) = runtime.block_on(async {
        let node = Node::of(BUDGET);
        // A thread that sleeps past an expiry may lose the units it took, but not within an hour.
        let options =
            LeaseOptions { units_max: 1_000, ttl: SETTINGS.lease.ttl_max, ..LeaseOptions::default() };
        let lease = node.client(Options { deadline: Duration::from_secs(60) }).lease(question(), options);
        (node, lease.expect("a lease"))
    });
    let done = AtomicUsize::new(0);
    let taken: u64 = thread::scope(|scope| {
        let takers: Vec<_> = (0..TAKERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut taken = 0;
                    // The loop ends when the node has nothing more: it never gets more units.
                    loop {
                        match lease.try_take(1) {
                            LeaseTake::Taken => taken += 1,
                            LeaseTake::Empty => thread::yield_now(),
                            LeaseTake::Denied { .. } => break,
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    taken
                })
            })
            .collect();
        takers.into_iter().map(|taker| taker.join().expect("no panic")).sum()
    });
    assert_eq!(done.load(Ordering::Relaxed), TAKERS);
    runtime.block_on(lease.close());
    assert_eq!(taken, node.charged(), "no unit is handed out twice or lost");
    assert!(taken <= BUDGET);
}

/// Events of a lease's life, in any order.
#[derive(Clone, Debug)]
enum Step {
    Take { cost: u64, times: u64 },
    Wait { ms: u64 },
    Mode(Mode),
    Share(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        3 => Just(Mode::Answers),
        1 => Just(Mode::Hangs),
        1 => Just(Mode::Gone),
        1 => Just(Mode::Denies(Some(300))),
        1 => Just(Mode::Denies(None)),
        1 => Just(Mode::LosesAnswers),
        1 => Just(Mode::LosesCommits),
    ];
    prop_oneof![
        6 => (0..40_u64, 1..30_u64).prop_map(|(cost, times)| Step::Take { cost, times }),
        4 => prop_oneof![0..50_u64, 0..12_000_u64].prop_map(|ms| Step::Wait { ms }),
        2 => mode.prop_map(Step::Mode),
        1 => prop_oneof![1..50_u64, Just(u64::MAX)].prop_map(Step::Share),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_lease_never_hands_out_more_than_is_charged(
        budget in 0..3_000_u64,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let node = Node::of(budget);
            let lease = lease(&node);
            let (mut taken, mut is_lossy) = (0, false);
            for step in steps {
                match step {
                    Step::Take { cost, times } => {
                        for _ in 0..times {
                            if lease.try_take(cost) == LeaseTake::Taken {
                                taken += cost.max(1);
                            }
                        }
                    }
                    Step::Wait { ms } => sleep(Duration::from_millis(ms)).await,
                    Step::Mode(mode) => {
                        is_lossy |= !matches!(mode, Mode::Answers | Mode::Denies(_));
                        node.set(mode);
                        if mode != Mode::Hangs {
                            node.release();
                        }
                    }
                    Step::Share(units) => node.books().share = units,
                }
                prop_assert!(taken <= node.charged(), "{taken} of {}", node.charged());
            }
            // Heal the node, and check that service resumes and the books agree.
            node.set(Mode::Answers);
            node.release();
            sleep(Duration::from_secs(15)).await;
            lease.close().await;
            prop_assert!(taken <= node.charged(), "{taken} of {}", node.charged());
            if !is_lossy {
                prop_assert_eq!(taken, node.charged(), "nothing was lost");
            }
            Ok(())
        })?;
    }
}
