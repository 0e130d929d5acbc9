//! Finds out in the background which server has which groups, and tends the shards, as long as a handle of
//! the client exists.

use std::{collections::BTreeMap, sync::Arc};

use acequia_rights::splitmix::Random;
use arc_swap::ArcSwap;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    group::Group,
    link::Link,
    settings::{Address, RedisServers, SHARDS_MAX, Settings},
    shard::{Shard, Tally},
    tend::{Pause, tend},
    topology::{Layout, Scout},
    wire::Access,
};
use crate::settings::SETTINGS;

/// The shard of each group.
#[derive(Debug, Default)]
pub(super) struct Map {
    pub(super) shards: Vec<Arc<Shard>>,
    /// For each group, an index of `shards`.
    places: Vec<Option<usize>>,
}

impl Map {
    pub(super) fn shard(&self, group: Group) -> Option<&Arc<Shard>> {
        let place = *self.places.get(usize::from(group.number()))?;
        self.shards.get(place?)
    }

    /// Whether each group has a shard that serves.
    fn is_well(&self) -> bool {
        !self.places.is_empty()
            && self.places.iter().all(Option::is_some)
            && self.shards.iter().all(|shard| shard.is_well())
    }

    fn calm_links(&self, random: &mut Random) -> Vec<(Address, Arc<Link>)> {
        let mut shards = self.shards.clone();
        random.shuffle(&mut shards);
        let link = |shard: &Arc<Shard>| Some((shard.address.clone(), shard.any_link()?));
        shards.iter().filter_map(link).take(SETTINGS.layout.calm_asked).collect()
    }
}

/// A shard that is tended until this is dropped.
#[derive(Debug)]
struct Tended {
    shard: Arc<Shard>,
    _tasks: JoinSet<()>,
}

/// Looks and tends until the task is aborted.
pub(super) async fn keep(settings: Settings, map: Arc<ArcSwap<Map>>, refresh: Arc<Notify>) {
    let mut keeper = Keeper::new(settings, map, refresh);
    let mut pause = Pause::new(SETTINGS.layout.look_gap, SETTINGS.layout.look_gap_max);
    let mut is_calm = false;
    loop {
        keeper.look(is_calm).await;
        if matches!(keeper.settings.place, RedisServers::Shards { .. }) {
            // Nothing can change: the shards are those of the settings.
            std::future::pending::<()>().await;
        }
        sleep(pause.next(&mut keeper.random)).await;
        is_calm = keeper.map.load().is_well();
        if is_calm {
            let rest = keeper.random.jittered(keeper.settings.timings.refresh_every);
            is_calm = timeout(rest, keeper.refresh.notified()).await.is_err();
        }
        // The pause is not reset as soon as all seems well: servers that redirect calls to each other for
        // ever cause a look each time.
        if is_calm {
            pause.reset();
        }
    }
}

#[derive(Debug)]
struct Keeper {
    settings: Settings,
    map: Arc<ArcSwap<Map>>,
    refresh: Arc<Notify>,
    access: Access,
    scout: Scout,
    random: Random,
    tended: BTreeMap<(String, Address), Tended>,
    tallies: BTreeMap<String, Arc<Tally>>,
    is_answered: bool,
}

impl Keeper {
    fn new(settings: Settings, map: Arc<ArcSwap<Map>>, refresh: Arc<Notify>) -> Self {
        let access = Access {
            credentials: settings.credentials.clone(),
            tls: settings.tls.clone(),
            timeout: settings.timings.connect_timeout,
            may_evict: settings.may_evict,
        };
        let mut random = Random::from_state(settings.seed);
        let scout = Scout::new(settings.place.clone(), access.clone(), random.next());
        Self {
            settings,
            map,
            refresh,
            access,
            scout,
            random,
            tended: BTreeMap::new(),
            tallies: BTreeMap::new(),
            is_answered: true,
        }
    }

    async fn look(&mut self, is_calm: bool) {
        let calm = if is_calm { self.map.load().calm_links(&mut self.random) } else { Vec::new() };
        match self.scout.look(&calm).await {
            Ok(layout) => {
                self.is_answered = true;
                self.follow(layout);
            }
            Err(why) => {
                if std::mem::replace(&mut self.is_answered, false) {
                    tracing::warn!(why, "nobody tells which Redis serves what: going by what was known");
                }
            }
        }
    }

    /// Tends new shards, keeps unchanged ones, and drops the others.
    fn follow(&mut self, layout: Layout) {
        let mut before = std::mem::take(&mut self.tended);
        let mut map = Map::default();
        // The index in the map of each shard in the layout. A shard without an address is not in the map.
        let mut indexes = Vec::with_capacity(layout.shards.len());
        for (name, address) in layout.shards.into_iter().take(SHARDS_MAX) {
            let Some(address) = address else {
                indexes.push(None);
                continue;
            };
            let tended = match before.remove(&(name.clone(), address.clone())) {
                Some(tended) => tended,
                None => self.tended(name.clone(), address.clone()),
            };
            indexes.push(Some(map.shards.len()));
            map.shards.push(Arc::clone(&tended.shard));
            self.tended.insert((name, address), tended);
        }
        map.places = layout.places.into_iter().map(|place| indexes.get(place?).copied().flatten()).collect();
        self.tallies =
            map.shards.iter().map(|shard| (shard.name.clone(), Arc::clone(&shard.tally))).collect();
        self.map.store(Arc::new(map));
    }

    fn tended(&mut self, name: String, address: Address) -> Tended {
        tracing::info!(shard = name, %address, "a Redis serves");
        let connections = self.settings.connections;
        let tally = self.tallies.get(&name).cloned().unwrap_or_default();
        let seed = self.random.next();
        let shard =
            Arc::new(Shard::new(name, address, &self.settings, seed, tally, Arc::clone(&self.refresh)));
        let mut tasks = JoinSet::new();
        for index in 0..connections {
            let (access, timings) = (self.access.clone(), self.settings.timings.clone());
            tasks.spawn(tend(Arc::clone(&shard), index, access, timings, self.random.next()));
        }
        Tended { shard, _tasks: tasks }
    }
}
