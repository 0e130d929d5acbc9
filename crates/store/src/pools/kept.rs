//! Pools that one process keeps.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use acequia_rights::pool::{
    self, AGREEMENT, Bucket, CallContext, Letter, Letters, NameRecord, PoolRefused, Sliding, Window, bucket,
    group::{Assertion, Begin, Excluded, GroupStatus, ServerIdentity},
    name::{self, NAMES_MAX, NameState},
    sliding, window,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{At, CallAnswer, Pools};
use crate::{
    Store,
    redis::{Group, Missed},
};

/// Pools in a store of this process: an answer holds after any crash that the store survives.
#[derive(Debug)]
pub struct KeptPools {
    store: Arc<dyn Store>,
    server: Mutex<ServerIdentity>,
}

/// The times at which cells may be dropped: wall clock, in microseconds, and the cell.
type Due = BTreeSet<(u64, String)>;

impl KeptPools {
    /// Pools in a store. `run` names the server: use another name if the server may have forgotten something.
    pub fn new(store: Arc<dyn Store>, run: &str) -> Self {
        Self {
            store,
            server: Mutex::new(ServerIdentity { run: run.to_owned(), config_fingerprint: 0, allocation: 0 }),
        }
    }

    /// Changes the name of the server, since the store may have forgotten something.
    pub fn is_now(&self, run: &str) {
        self.server().run = run.to_owned();
    }

    /// Locked during a call: calls come one after the other.
    fn server(&self) -> std::sync::MutexGuard<'_, ServerIdentity> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, Missed> {
        let bytes = self.store.value(name).map_err(|fault| Missed::Refused(fault.to_string()))?;
        let Some(mut bytes) = bytes else { return Ok(T::default()) };
        postcard::from_bytes(&bytes).or_else(|fault| {
            // A record may lack its last one or two fields, which are zeros then.
            let whole = (0..2).find_map(|_| {
                bytes.push(0);
                postcard::from_bytes(&bytes).ok()
            });
            whole.ok_or_else(|| Missed::Refused(format!("{name} cannot be read: {fault}")))
        })
    }

    fn write(&self, values: &[(&str, Option<&[u8]>)]) -> Result<(), Missed> {
        self.store.commit(&[], values).map_err(|fault| Missed::Unknown(fault.to_string().into()))
    }

    /// Changes a group.
    fn with_group(
        &self,
        at: &At<'_>,
        work: impl FnOnce(&mut pool::PoolGroup, &ServerIdentity) -> GroupStatus,
    ) -> Result<GroupStatus, Missed> {
        let held = self.server();
        let mut kept: pool::PoolGroup = self.read(&group_name(at))?;
        let known = work(&mut kept, &in_allocation(&held, at));
        self.write(&[(&group_name(at), Some(&bytes_of(&kept)))])?;
        Ok(known)
    }

    /// The facts that a call may rely on; or else the status of the group.
    fn context(
        &self,
        server: &ServerIdentity,
        at: &At<'_>,
    ) -> Result<Result<CallContext, GroupStatus>, Missed> {
        let group: pool::PoolGroup = self.read(&group_name(at))?;
        Ok(group.context(server, at.generation, at.wall_us).ok_or_else(|| group.known(server)))
    }

    /// Changes a cell. The result of `work` says from when on the cell may be dropped.
    fn with_cell<C: Serialize + DeserializeOwned + Default, T>(
        &self,
        at: &At<'_>,
        work: impl FnOnce(&mut C, &CallContext) -> Result<(T, u64), PoolRefused>,
    ) -> Result<CallAnswer<T>, Missed> {
        let held = self.server();
        let context = match self.context(&in_allocation(&held, at), at)? {
            Ok(context) => context,
            Err(known) => return Ok(CallAnswer::Unknown(known)),
        };
        let name = cell_name(at.group, at.cell);
        let mut cell: C = self.read(&name)?;
        match work(&mut cell, &context) {
            Ok((answer, due_us)) => {
                let mut due: Due = self.read(&due_name(at))?;
                due.retain(|(_, cell)| cell != at.cell);
                due.insert((due_us, at.cell.to_owned()));
                let (cell, due) = (bytes_of(&cell), bytes_of(&due));
                self.write(&[(&name, Some(&cell)), (&due_name(at), Some(&due))])?;
                Ok(CallAnswer::Done(answer))
            }
            Err(refused) => Ok(CallAnswer::Refused(refused)),
        }
    }
}

/// The identity of the server for pools that are part of an allocation.
fn in_allocation(server: &ServerIdentity, at: &At<'_>) -> ServerIdentity {
    ServerIdentity { run: server.run.clone(), config_fingerprint: 0, allocation: at.allocation }
}

fn group_name(at: &At<'_>) -> String {
    let of = if at.allocation == AGREEMENT { "agreed" } else { "pools" };
    format!("{of}/{}", at.group.number())
}

fn due_name(at: &At<'_>) -> String {
    format!("{}/due", group_name(at))
}

fn cell_name(group: Group, cell: &str) -> String {
    format!("pools/{}/cell/{cell}", group.number())
}

fn bytes_of<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("pools have no numbers that cannot be written")
}

impl Pools for KeptPools {
    async fn begin(&self, at: &At<'_>, begin: &Begin) -> Result<GroupStatus, Missed> {
        self.with_group(at, |kept, server| kept.begin(server, begin))
    }

    async fn assert(
        &self,
        at: &At<'_>,
        assertion: &Assertion,
        excluded: Option<&Excluded>,
    ) -> Result<GroupStatus, Missed> {
        self.with_group(at, |kept, server| match excluded {
            Some(excluded) => kept.assert_without(server, assertion, excluded),
            None => kept.assert(server, assertion),
        })
    }

    async fn take(&self, at: &At<'_>, take: &window::Take) -> Result<CallAnswer<window::Took>, Missed> {
        self.with_cell(at, |cell: &mut Window, context| Ok((cell.take(take, context)?, take.drops_us)))
    }

    async fn exchange(
        &self,
        at: &At<'_>,
        exchange: &bucket::Exchange,
        params: &bucket::BucketParams,
    ) -> Result<CallAnswer<bucket::Exchanged>, Missed> {
        self.with_cell(at, |cell: &mut Bucket, context| {
            let exchanged = cell.exchange(exchange, params, context)?;
            Ok((exchanged, cell.over_us(params, context)))
        })
    }

    async fn exchange_sliding(
        &self,
        at: &At<'_>,
        exchange: &sliding::Slide,
    ) -> Result<CallAnswer<sliding::Slid>, Missed> {
        self.with_cell(at, |cell: &mut Sliding, context| {
            let exchanged = cell.exchange(exchange, context)?;
            Ok((exchanged, cell.over_us(exchange, context)))
        })
    }

    async fn name(&self, at: &At<'_>, act: &name::Act) -> Result<CallAnswer<NameState>, Missed> {
        let held = self.server();
        let context = match self.context(&in_allocation(&held, at), at)? {
            Ok(context) => context,
            Err(known) => return Ok(CallAnswer::Unknown(known)),
        };
        let names = format!("{}/names", group_name(at));
        let mut due: Due = self.read(&names)?;
        let mut gone: Vec<_> = due.iter().take_while(|(due_us, _)| *due_us <= at.wall_us).cloned().collect();
        due.retain(|name| !gone.contains(name));
        let key = cell_name(at.group, at.cell);
        let is_there = due.iter().any(|(_, name)| name == at.cell);
        let mut name: NameRecord = if is_there { self.read(&key)? } else { NameRecord::default() };
        let standing = name.act(act, &context);
        due.retain(|(_, other)| other != at.cell);
        if standing == NameState::Free {
            gone.push((0, at.cell.to_owned()));
        } else {
            gone.retain(|(_, other)| other != at.cell);
            // The names that end first make room for this one.
            while due.len() >= NAMES_MAX {
                gone.extend(due.pop_first());
            }
            due.insert((name.drops_us(), at.cell.to_owned()));
        }
        let (bytes, due) = (bytes_of(&name), bytes_of(&due));
        let gone: Vec<String> = gone.iter().map(|(_, name)| cell_name(at.group, name)).collect();
        let mut values: Vec<(&str, Option<&[u8]>)> = vec![(&names, Some(&due)), (&key, Some(&bytes))];
        values.extend(gone.iter().map(|name| (name.as_str(), None)));
        self.write(&values)?;
        Ok(CallAnswer::Done(standing))
    }

    async fn post(&self, at: &At<'_>, letter: Letter, drops_us: u64) -> Result<CallAnswer<bool>, Missed> {
        self.with_cell(at, |cell: &mut Letters, context| {
            let is_there = cell.post(letter, drops_us, context);
            Ok((is_there, cell.drops_us()))
        })
    }

    async fn collect(&self, at: &At<'_>, had: &[u128]) -> Result<CallAnswer<Vec<Letter>>, Missed> {
        self.with_cell(at, |cell: &mut Letters, context| Ok((cell.collect(had, context), cell.drops_us())))
    }

    async fn sweep(&self, at: &At<'_>, most: u32) -> Result<CallAnswer<u64>, Missed> {
        let held = self.server();
        if let Err(known) = self.context(&in_allocation(&held, at), at)? {
            return Ok(CallAnswer::Unknown(known));
        }
        let mut due: Due = self.read(&due_name(at))?;
        let over = due.iter().take_while(|(due_us, _)| *due_us <= at.wall_us).take(most as usize);
        let over: Vec<_> = over.cloned().collect();
        due.retain(|cell| !over.contains(cell));
        let names: Vec<String> = over.iter().map(|(_, cell)| cell_name(at.group, cell)).collect();
        let due = bytes_of(&due);
        let due_name = due_name(at);
        let mut values: Vec<(&str, Option<&[u8]>)> = names.iter().map(|name| (name.as_str(), None)).collect();
        values.push((&due_name, Some(&due)));
        self.write(&values)?;
        Ok(CallAnswer::Done(over.len() as u64))
    }
}
