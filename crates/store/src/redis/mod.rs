//! Calls of functions in a region's Redis. **A call is sent at most once, its answer is its own, and it tells which process,
//! in which of its lives as a primary, it was meant for.**
//!
//! Cells are put into [`Group`]s. A group lies on one shard; here is known on which, and who its primary is. A call goes over
//! a connection whose server was asked who it is, and takes what that said along as its first argument: a function compares it with
//! the history that the server replicates, and with what is kept, and so no state that another process lost, or that a copy of it
//! never had, is taken for the present one. That is why there is no cluster client of a library underneath, which would hide who answered.
//!
//! Which shards there are need not be the same for all who call, nor for good: a group that is looked for on another shard begins a
//! generation there, as where a server was replaced and lives on.
//!
//! A call ends within its deadline and is never repeated, unless Redis said that it did not execute it. A server that does
//! not answer is noticed in less than a second, given up, and its successor looked for; calls to others go on meanwhile. What the
//! functions do is none of this module's business.
//!
//! `settings` says where and how patiently; `keeper` looks who serves what, which `topology` asks servers and `ring` computes;
//! `tend` keeps the connections of a `shard`, which are `link`s over `wire`s; `breaker` decides when one is left alone;
//! `clock` says whether its time is ours; `library` is what is loaded; `answer` is what comes back; `round_trips` and `executed` say how long that took.

mod answer;
mod breaker;
mod clock;
mod executed;
mod group;
mod keeper;
mod library;
mod link;
mod random;
mod ring;
mod round_trips;
mod server;
mod settings;
mod shard;
mod tend;
mod topology;
mod wire;

use std::{sync::Arc, time::Duration};

use acequia_node::leases::ServerClock;
use arc_swap::ArcSwap;
use tokio::{runtime, sync::Notify, task::AbortHandle};

pub use self::{
    answer::{Arg, Missed, Value},
    breaker::BreakerState,
    clock::WallRead,
    group::Group,
    library::Function,
    round_trips::{ROUND_TRIP_BOUNDS_US, RoundTrips},
    settings::{
        Address, CALL_DEADLINE, CONNECTIONS_MAX, ClientCertificate, Credentials, Place, SHARDS_MAX, Settings,
        SettingsError, Timings, Tls,
    },
    shard::{ShardState, ShardView},
};
use self::{
    keeper::{Map, keep},
    shard::Call,
};

/// A region's Redis. Cheap to clone, and any thread may call whose runtime has timers; when the last one is dropped, the
/// connections are closed.
#[derive(Clone, Debug)]
pub struct Redis(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    prefix: String,
    has_clocks: bool,
    map: Arc<ArcSwap<Map>>,
    keeper: AbortHandle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Redis {
    /// Begins to connect, on the current runtime. Whether anybody is there is told by [`Self::shards`] and by calls.
    ///
    /// # Errors
    /// The settings are out of their ranges, or there is no runtime here.
    pub fn open(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let runtime = runtime::Handle::try_current().map_err(|_| SettingsError::Runtime)?;
        let (prefix, has_clocks) = (settings.prefix.clone(), settings.clock_error.is_some());
        let map = Arc::new(ArcSwap::from_pointee(Map::default()));
        let refresh = Arc::new(Notify::new());
        let keeper = runtime.spawn(keep(settings, Arc::clone(&map), refresh)).abort_handle();
        Ok(Self(Arc::new(Handle { prefix, has_clocks, map, keeper })))
    }

    /// Calls a function once, with the keys `<prefix>:{<group>}:<suffix>`. Before the arguments it is given what its server said of
    /// itself when we connected, and the operation's number; what is returned follows that number in its answer.
    ///
    /// # Errors
    /// Why there is no answer, and whether it may have been executed. After the deadline, at the latest.
    pub async fn call(
        &self,
        group: Group,
        function: Function,
        suffixes: &[&str],
        args: &[Arg<'_>],
        deadline: Duration,
    ) -> Result<Vec<Value>, Missed> {
        let shard = self.0.map.load().shard(group).cloned();
        let shard =
            shard.ok_or_else(|| Missed::not_sent("nobody has told yet which shard serves its group"))?;
        let keys: Vec<String> = suffixes.iter().map(|suffix| group.key(&self.0.prefix, suffix)).collect();
        shard.call(&Call { function, keys: &keys, args, deadline }).await
    }

    /// Whether they are compared: [`Settings::clock_error`].
    #[must_use]
    pub fn has_clocks(&self) -> bool {
        self.0.has_clocks
    }

    /// How the servers' clocks compare with our wall, one of each shard that has told the time. None where [`Settings::clock_error`] is
    /// not set.
    #[must_use]
    pub fn clocks(&self, read: &WallRead) -> Vec<ServerClock> {
        self.0.map.load().shards.iter().filter_map(|shard| shard.clock(read)).collect()
    }

    /// Servers are called from now on, until the next comparison, if their clocks agree with this wall: within twice
    /// [`Settings::clock_error`]. Call it every ten milliseconds or so; before the first time none is called.
    pub fn compare_clocks(&self, read: &WallRead) {
        for shard in &self.0.map.load().shards {
            shard.compare_clock(read);
        }
    }

    /// The shards that are known now, in a fixed order.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardView> {
        self.0.map.load().shards.iter().map(|shard| shard.view()).collect()
    }

    /// The shard that a group is on now, if it is known.
    #[must_use]
    pub fn shard(&self, group: Group) -> Option<ShardView> {
        self.0.map.load().shard(group).map(|shard| shard.view())
    }
}
