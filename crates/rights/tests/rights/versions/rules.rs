//! The rules one by one.

use std::collections::BTreeMap;

use acequia_limits::Now;
use acequia_rights::{
    Ack, Incarnation, MemberId, Version, VersionId, Versions,
    versions::{
        ALLOCATIONS_MAX, Adopted, CellSecret, Draft, Fence, Lasts, Learned, Member, ShareKind,
        VersionRefused, WaitReason, stretched,
    },
};

const SECOND: u64 = 1_000_000_000;
/// Divides without a remainder by two and three equal weights, and by three to one.
const TOTAL: u64 = 102;
const AT: Now = Now::at(1_000 * SECOND);

fn incarnation(region: u16, incarnation: u32) -> Incarnation {
    Incarnation { member: MemberId(region), node: 0, number: incarnation }
}

fn members(incarnations: &[(Incarnation, u32)]) -> BTreeMap<MemberId, Member> {
    let member = |&(incarnation, weight): &(Incarnation, u32)| {
        (incarnation.member, Member { weight, incarnation, name: String::new() })
    };
    incarnations.iter().map(member).collect()
}

fn draft(incarnations: &[(Incarnation, u32)]) -> Draft {
    Draft {
        members: members(incarnations),
        fenced: Vec::new(),
        clock_error_ns: 0,
        drift_ppm: 1_000,
        key: CellSecret([1; 16]),
        limits: Vec::new(),
        revoked: Default::default(),
    }
}

/// Regions 0 to `count` with equal weights, all with the first version.
fn scene(count: u16) -> (Vec<Versions>, Version) {
    let incarnations: Vec<(Incarnation, u32)> =
        (0..count).map(|region| (incarnation(region, 0), 1)).collect();
    let mut nodes: Vec<Versions> =
        incarnations.iter().map(|&(incarnation, _)| Versions::new(incarnation)).collect();
    let first = nodes[0].propose(draft(&incarnations), AT.wall_ns).expect("a version");
    for node in &mut nodes {
        node.adopt(first.clone(), AT).expect("adopted");
    }
    (nodes, first)
}

/// A node conforms, and has written this to disk.
fn ack(node: &mut Versions, now: Now) -> Ack {
    let due = node.ack_due().expect("due");
    assert!(node.conform(due, now.wall_ns));
    node.stored(node.revision(), now);
    node.own_ack().expect("stored")
}

fn tell_all(nodes: &mut [Versions], from: usize, now: Now) {
    let (who, ack) = (nodes[from].me(), ack(&mut nodes[from], now));
    for (_, node) in nodes.iter_mut().enumerate().filter(|(at, _)| *at != from) {
        node.learn_ack(who, ack, now);
    }
}

fn share(node: &Versions, kind: ShareKind) -> u64 {
    node.share(node.me(), TOTAL, 7, kind).units
}

fn bucket(now: Now) -> ShareKind {
    ShareKind::Bucket { steady_ns: now.steady_ns, horizon_ns: SECOND }
}

/// Windows of this length, and no buckets.
fn windows_of(windows_ns: u64) -> Lasts {
    Lasts { windows_ns, drains_ns: 0 }
}

#[test]
fn a_node_without_a_catalogue_owns_nothing() {
    let node = Versions::new(incarnation(0, 0));
    assert!(!node.owns(node.me()) && share(&node, bucket(AT)) == 0);
    assert_eq!((node.ack_due(), node.own_ack(), node.progress()), (None, None, None));
}

#[test]
fn a_single_region_is_its_own_authority_at_once() {
    let (nodes, _) = scene(1);
    assert_eq!(share(&nodes[0], bucket(AT)), TOTAL);
}

#[test]
fn a_raised_share_waits_for_every_member_and_then_for_old_debt() {
    let (mut nodes, _) = scene(2);
    let weights = [(incarnation(0, 0), 3), (incarnation(1, 0), 1)];
    let second = nodes[0].propose(draft(&weights), AT.wall_ns).expect("a version");
    for node in &mut nodes {
        node.adopt(second.clone(), AT).expect("adopted");
    }
    assert_eq!(share(&nodes[1], bucket(AT)), 26, "a lowering is at once");
    tell_all(&mut nodes, 0, AT);
    assert_eq!(share(&nodes[0], bucket(AT)), 51);
    let pending = nodes[0].progress().expect("a version").pending;
    assert_eq!(pending, [(incarnation(1, 0), WaitReason::Silent)]);

    let heard = AT.later(SECOND);
    tell_all(&mut nodes, 1, heard);
    let horizon = stretched(SECOND, 1_000);
    assert!(horizon > SECOND);
    assert_eq!(share(&nodes[0], bucket(heard.later(horizon - 1))), 51);
    assert_eq!(share(&nodes[0], bucket(heard.later(horizon))), 76);
    let from = nodes[1].own_ack().expect("said").from_wall_ns;
    assert_eq!(share(&nodes[0], ShareKind::Window { start_wall_ns: from - 1, lasts_ns: SECOND }), 51);
    assert_eq!(share(&nodes[0], ShareKind::Window { start_wall_ns: from, lasts_ns: SECOND }), 76);
    let older_until = |node: &Versions| node.progress().expect("a version").older_until_ns;
    assert_eq!(older_until(&nodes[0]), from, "what is shown is what holds");

    nodes[0].settle(windows_of(10 * SECOND), heard.later(5 * SECOND));
    assert_eq!(nodes[0].allocations().len(), 2);
    nodes[0].settle(windows_of(10 * SECOND), heard.later(50 * SECOND));
    assert_eq!(nodes[0].allocations().len(), 1);
    assert_eq!(older_until(&nodes[0]), 0);
}

/// In windows that were open, moved shares stay with their old owners, and no new share applies. From the
/// next window on, the agreed shares apply.
#[test]
fn open_windows_keep_the_shares_of_before() {
    let (mut nodes, _) = scene(2);
    nodes.iter_mut().for_each(|node| node.counts_for(windows_of(3_600 * SECOND)));
    let weights = [(incarnation(0, 0), 3), (incarnation(1, 0), 1)];
    let second = nodes[0].propose(draft(&weights), AT.wall_ns).expect("a version");
    let later = AT.later(SECOND);
    nodes[0].adopt(second.clone(), AT).expect("adopted");
    nodes[1].adopt(second, later).expect("adopted");
    let of = |start_wall_ns: u64, lasts_ns: u64| ShareKind::Window { start_wall_ns, lasts_ns };
    let hour = 3_600 * SECOND;
    assert_eq!(share(&nodes[1], of(later.wall_ns - 1, hour)), 51);
    assert_eq!(share(&nodes[1], of(later.wall_ns, hour)), 26, "it begins afterwards");
    assert_eq!(
        share(&nodes[1], of(AT.wall_ns, hour + 1)),
        26,
        "others may have forgotten what it was before"
    );
    // A restart forgets none of this.
    let restored = Versions::restore(nodes[1].kept().clone(), later);
    assert_eq!(share(&restored, of(later.wall_ns - 1, hour)), 51);
    tell_all(&mut nodes, 0, AT);
    // The clock went back. The second node does not acknowledge for windows that it used by its old share.
    tell_all(&mut nodes, 1, AT);
    let from = nodes[1].own_ack().expect("said").from_wall_ns;
    assert!(from > later.wall_ns);
    assert_eq!(share(&nodes[0], of(from - 1, hour)), 51);
    assert_eq!((share(&nodes[0], of(from, hour)), share(&nodes[1], of(from, hour))), (76, 26));
}

/// The version that begins an allocation knows of short windows only, so a node that agrees to it soon
/// forgets the allocation before. The next version knows of longer windows.
#[test]
fn a_node_that_skipped_a_version_keeps_no_old_share_of_open_windows() {
    let (mut nodes, _) = scene(3);
    let weights = [(incarnation(0, 0), 3), (incarnation(1, 0), 1), (incarnation(2, 0), 2)];
    let second = nodes[0].propose(draft(&weights), AT.wall_ns).expect("a version");
    nodes[0].adopt(second.clone(), AT).expect("adopted");
    nodes[2].adopt(second, AT).expect("adopted");
    nodes[0].counts_for(windows_of(3_600 * SECOND));
    let wanted = Draft { limits: vec![9], ..draft(&weights) };
    let third = nodes[0].propose(wanted, AT.wall_ns).expect("a version");
    assert_eq!((third.version_id == third.allocation, third.lasts.windows_ns), (false, 3_600 * SECOND));
    nodes[1].adopt(third, AT).expect("adopted");
    let open = ShareKind::Window { start_wall_ns: AT.wall_ns - 1, lasts_ns: 3_600 * SECOND };
    assert!(share(&nodes[1], open) <= 18, "a sixth, and not a third");
    (0..3).for_each(|from| tell_all(&mut nodes, from, AT));
    let later = AT.later(5 * SECOND);
    nodes[2].settle(windows_of(SECOND), later);
    assert_eq!(nodes[2].allocations().len(), 1, "it has not heard of long windows");
    let all: u64 = nodes.iter().map(|node| share(node, open)).sum();
    assert!(all <= TOTAL, "{all}");
}

/// (Histories 10008676 and 20015954.)
#[test]
fn the_allocations_a_removed_limit_was_used_under_are_kept() {
    let (mut nodes, _) = scene(2);
    nodes.iter_mut().for_each(|node| node.counts_for(windows_of(3_600 * SECOND)));
    let weights = [(incarnation(0, 0), 3), (incarnation(1, 0), 1)];
    let second = nodes[0].propose(draft(&weights), AT.wall_ns).expect("a version");
    for node in &mut nodes {
        node.adopt(second.clone(), AT).expect("adopted");
        // The hourly limit is removed.
        node.counts_for(windows_of(SECOND));
    }
    tell_all(&mut nodes, 0, AT);
    tell_all(&mut nodes, 1, AT);
    let mut restored = Versions::restore(nodes[0].kept().clone(), AT);
    for node in [&mut nodes[0], &mut restored] {
        node.settle(windows_of(SECOND), AT.later(3_000 * SECOND));
        assert_eq!(node.allocations().len(), 2, "it may come back, and what was spent under it counts");
        node.settle(windows_of(SECOND), AT.later(3_700 * SECOND));
        assert_eq!(node.allocations().len(), 1);
    }
}

/// (History 36000180.)
#[test]
fn a_joining_region_waits_for_limits_it_never_heard_of() {
    let (mut nodes, _) = scene(2);
    // There was an hourly limit, but none when the third region joins.
    nodes.iter_mut().for_each(|node| node.counts_for(windows_of(3_600 * SECOND)));
    let joined = [(incarnation(0, 0), 1), (incarnation(1, 0), 1), (incarnation(2, 0), 1)];
    let second = nodes[0].propose(draft(&joined), AT.wall_ns).expect("a version");
    nodes.push(Versions::new(incarnation(2, 0)));
    for node in &mut nodes {
        node.adopt(second.clone(), AT).expect("adopted");
        node.counts_for(windows_of(SECOND));
    }
    (0..3).for_each(|from| tell_all(&mut nodes, from, AT));
    let third = &mut nodes[2];
    third.settle(windows_of(SECOND), AT.later(3_000 * SECOND));
    let hourly =
        ShareKind::Sliding { steady_ns: AT.later(3_000 * SECOND).steady_ns, horizon_ns: 3_600 * SECOND };
    assert_eq!(
        (third.allocations().len(), share(third, hourly)),
        (2, 0),
        "it comes back, and others have used it"
    );
    third.settle(windows_of(SECOND), AT.later(3_700 * SECOND));
    assert_eq!(third.allocations().len(), 1);
}

#[test]
fn a_change_of_budgets_alone_begins_no_allocation() {
    let (mut nodes, first) = scene(2);
    let wanted = Draft { limits: vec![9], ..draft(&[(incarnation(0, 0), 1), (incarnation(1, 0), 1)]) };
    let second = nodes[0].propose(wanted, AT.wall_ns).expect("a version");
    assert_eq!((second.allocation, second.version_id.number), (first.allocation, 2));
    let adopted = nodes[1].adopt(second, AT);
    assert_eq!(adopted, Ok(Adopted::New { redistributes: false, closed: vec![] }));
    assert_eq!(share(&nodes[1], bucket(AT)), 51);
}

#[test]
fn a_version_that_contradicts_another_is_refused_without_effect() {
    let (mut nodes, first) = scene(2);
    let weights = [(incarnation(0, 0), 3), (incarnation(1, 0), 1)];
    let second = nodes[0].propose(draft(&weights), AT.wall_ns).expect("a version");
    let node = &mut nodes[1];
    node.adopt(second.clone(), AT).expect("adopted");
    let (kept, revision) = (node.kept().clone(), node.revision());

    let other = Version { limits: vec![1], ..second.clone() };
    let next = Version { version_id: VersionId { epoch: 1, number: 3 }, ..second.clone() };
    let renamed =
        Version { members: members(&[(incarnation(0, 0), 4), (incarnation(1, 0), 1)]), ..next.clone() };
    let rival = Version { authority: incarnation(1, 0), ..next.clone() };
    let rekeyed = Version { key: CellSecret([2; 16]), ..next.clone() };
    let orphan = Version { authority: incarnation(9, 0), ..next.clone() };
    let both = Version { leaving: [incarnation(1, 0)].into(), ..next.clone() };
    let stray = Version { allocation: VersionId { epoch: 2, number: 1 }, ..next };
    assert_eq!(node.adopt(second.clone(), AT), Ok(Adopted::Known));
    assert_eq!(
        node.adopt(first.clone(), AT),
        Err(VersionRefused::Older(first.version_id, second.version_id))
    );
    assert_eq!(node.adopt(other, AT), Err(VersionRefused::Conflict(second.version_id)));
    assert_eq!(node.adopt(rival, AT), Err(VersionRefused::Authority(VersionId { epoch: 1, number: 3 })));
    for impossible in [renamed, rekeyed, orphan, both, stray] {
        assert!(matches!(node.adopt(impossible, AT), Err(VersionRefused::Impossible(_))));
    }
    assert_eq!((node.kept(), node.revision()), (&kept, revision));
}

#[test]
fn versions_of_an_old_authority_are_refused_after_it_moved() {
    let (mut nodes, first) = scene(3);
    let weights: Vec<(Incarnation, u32)> = (0..3).map(|region| (incarnation(region, 0), 1)).collect();
    assert_eq!(
        nodes[1].propose(draft(&weights), AT.wall_ns),
        Err(VersionRefused::Authority(first.version_id))
    );
    let taken = nodes[1].take_over(draft(&weights), AT.wall_ns).expect("a version");
    assert_eq!((taken.version_id.epoch, taken.allocation), (2, taken.version_id));
    let late = nodes[0]
        .propose(draft(&[(incarnation(0, 0), 9), (incarnation(1, 0), 1)]), AT.wall_ns)
        .expect("a version");
    nodes[2].adopt(taken.clone(), AT).expect("adopted");
    assert_eq!(
        nodes[2].adopt(late.clone(), AT),
        Err(VersionRefused::Older(late.version_id, taken.version_id))
    );
}

#[test]
fn a_new_incarnation_has_no_share_until_named_and_acknowledged() {
    let (mut nodes, _) = scene(2);
    let (old, new) = (incarnation(1, 0), incarnation(1, 1));
    nodes[1] = Versions::new(new);
    let fence = Fence { incarnation: old, wall_ns: AT.wall_ns };
    let early = Fence { wall_ns: AT.wall_ns + 1, ..fence };
    let wanted = Draft { fenced: vec![early], ..draft(&[(incarnation(0, 0), 1), (new, 1)]) };
    assert!(matches!(nodes[0].propose(wanted, AT.wall_ns), Err(VersionRefused::Impossible(_))));
    let wanted = Draft { fenced: vec![fence], ..draft(&[(incarnation(0, 0), 1), (new, 1)]) };
    let second = nodes[0].propose(wanted, AT.wall_ns).expect("a version");
    let adopted = nodes[0].adopt(second.clone(), AT);
    assert_eq!(adopted, Ok(Adopted::New { redistributes: true, closed: vec![old] }));
    nodes[1].adopt(second, AT).expect("adopted");
    assert!(nodes[0].closed(old) && !nodes[0].owns(old) && nodes[0].owns(new) && !nodes[0].closed(new));
    assert_eq!(share(&nodes[1], bucket(AT)), 0);
    tell_all(&mut nodes, 0, AT);
    tell_all(&mut nodes, 1, AT);
    assert_eq!(share(&nodes[1], bucket(AT.later(2 * SECOND))), 51);
    let back = Draft { fenced: vec![], ..draft(&[(incarnation(0, 0), 1), (old, 1)]) };
    assert!(matches!(nodes[0].propose(back, AT.wall_ns), Err(VersionRefused::Impossible(_))));
}

/// The fault in asking only the members that an allocation lowers: see "Why not less" in `versions.rs`.
#[test]
fn a_skipped_version_raises_no_shares_above_the_total() {
    let (mut nodes, _) = scene(3);
    let weights = |x, z, b| [(incarnation(0, 0), x), (incarnation(1, 0), z), (incarnation(2, 0), b)];
    let second = nodes[0].propose(draft(&weights(12, 8, 10)), AT.wall_ns).expect("a version");
    for node in &mut nodes[..2] {
        node.adopt(second.clone(), AT).expect("adopted");
    }
    let third = nodes[0].propose(draft(&weights(10, 8, 12)), AT.wall_ns).expect("a version");
    for node in &mut nodes[1..] {
        node.adopt(third.clone(), AT).expect("adopted");
    }
    // Z conforms to the third version. X never heard of the third, and B never of the second.
    tell_all(&mut nodes, 1, AT);
    let later = bucket(AT.later(100 * SECOND));
    let sum: u64 = nodes.iter().map(|node| share(node, later)).sum();
    assert!(sum <= TOTAL, "{sum}");
    assert!(share(&nodes[2], later) <= 34, "B waits for X");
}

#[test]
fn an_acknowledgement_is_sent_only_once_it_is_on_disk() {
    let (mut nodes, _) = scene(2);
    let node = &mut nodes[1];
    let before = node.revision();
    let due = node.ack_due().expect("due");
    assert!(node.conform(due, AT.wall_ns) && !node.conform(due, AT.wall_ns));
    assert_eq!(node.own_ack(), None);
    node.stored(before, AT);
    assert_eq!(node.own_ack(), None);
    let kept = node.kept().clone();
    node.stored(node.revision(), AT);
    let said = node.own_ack();
    assert!(said.is_some());
    // The node was killed after the write, before anybody knew. After the restart it sends its
    // acknowledgement, which counts.
    let restored = Versions::restore(kept, AT);
    assert_eq!(restored.own_ack(), said);
    assert_eq!(restored.acks().next(), said.map(|ack| (incarnation(1, 0), ack)));
}

#[test]
fn an_acknowledgement_is_only_replaced_by_a_later_one() {
    let (mut nodes, _) = scene(3);
    let first = ack(&mut nodes[1], AT);
    let who = incarnation(1, 0);
    assert_eq!(nodes[0].learn_ack(who, first, AT), Learned::New);
    assert_eq!(nodes[0].learn_ack(who, first, AT), Learned::Known);
    let later = Ack { from_wall_ns: first.from_wall_ns + 5, ..first };
    assert_eq!(nodes[0].learn_ack(who, later, AT), Learned::New);
    assert_eq!(nodes[0].learn_ack(who, first, AT), Learned::Known);
    assert_eq!(nodes[0].acks().next(), Some((who, later)));
    assert_eq!(nodes[0].learn_ack(incarnation(8, 0), first, AT), Learned::Unasked);
}

#[test]
fn a_node_with_too_many_allocations_owns_nothing_until_agreement() {
    let (mut nodes, _) = scene(2);
    let weights = |step: usize| [(incarnation(0, 0), 1 + step as u32 % 2), (incarnation(1, 0), 1)];
    let mut step = 1;
    let refused = loop {
        match nodes[0].propose(draft(&weights(step)), AT.wall_ns) {
            Ok(version) => nodes.iter_mut().for_each(|node| drop(node.adopt(version.clone(), AT))),
            Err(refused) => break refused,
        }
        step += 1;
    };
    assert_eq!((refused, step), (VersionRefused::Busy, ALLOCATIONS_MAX));
    // Another authority, which heard of fewer versions, may still make one.
    let held = nodes[1].version().expect("a version").clone();
    let version_id = VersionId { epoch: 2, number: held.version_id.number + 1 };
    let more = Version { version_id, allocation: version_id, authority: incarnation(1, 0), ..held };
    for node in &mut nodes {
        node.adopt(more.clone(), AT).expect("adopted");
        assert_eq!((node.allocations().len(), share(node, bucket(AT))), (2, 0));
    }
    tell_all(&mut nodes, 0, AT);
    tell_all(&mut nodes, 1, AT);
    let later = bucket(AT.later(2 * SECOND));
    assert_eq!(nodes.iter().map(|node| share(node, later)).sum::<u64>(), TOTAL);
}
