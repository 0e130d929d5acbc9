//! A service within a caller's runtime: one thread, no clock except tokio's and the caller's, and no socket,
//! file or chance that the caller did not bring. The service does what [`run`](crate::run) does on a machine.

use std::{fmt, sync::Arc, time::Duration};

use acequia_mesh::{Event, Mesh, MeshError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    connections::Connections,
    gate::Gate,
    port::Port,
    regions::{Audit, Connected},
    serve::{Listener, Rounds, accept, work},
    service::{Service, StartError},
    settings::SETTINGS,
};

/// The surroundings of a service that does not run on a machine of its own, besides its store, clock and
/// chance.
pub struct Surroundings<L> {
    /// Where callers connect by gRPC.
    pub grpc: L,
    /// Where callers connect by HTTP.
    pub http: L,
    /// The way to other regions; unused if the node stands alone.
    pub mesh: MeshSurroundings,
    /// How long each write to the disk takes.
    pub disk_latency: Box<dyn FnMut() -> Duration + Send>,
}

/// The additional surroundings of a node among regions.
pub struct MeshSurroundings {
    /// The log of changes of the catalogue.
    pub audit: Audit,
    /// Starts the mesh, on a socket of the caller's.
    pub connect: Box<Connect>,
}

/// Starts a mesh.
type Connect = dyn FnOnce(acequia_mesh::Config) -> Result<(Mesh, mpsc::Receiver<Event>), MeshError> + Send;

impl<L: fmt::Debug> fmt::Debug for Surroundings<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings")
            .field("grpc", &self.grpc)
            .field("http", &self.http)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MeshSurroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshSurroundings").field("audit", &self.audit).finish_non_exhaustive()
    }
}

impl Service {
    /// Serves in the caller's runtime until `stopping`, and then leaves behind what a clean stop leaves.
    /// Dropping the runtime is a crash.
    ///
    /// The config file and the certificates are not read again, and there is no listener for operators:
    /// orders go to [`Regions::order`](crate::regions::Regions::order).
    ///
    /// # Errors
    /// The fault that keeps the node from starting.
    pub async fn serve_in<L: Listener>(
        mut self,
        surroundings: Surroundings<L>,
        stopping: CancellationToken,
    ) -> Result<(), StartError> {
        let Surroundings { grpc, http, mesh: MeshSurroundings { audit, connect }, disk_latency } =
            surroundings;
        let joining = self.prepare(
            |_| Ok(audit),
            |_, config| {
                let (mesh, events) = connect(config)?;
                Ok(Connected { mesh, events })
            },
        )?;
        self.begin()?;
        let part = CancellationToken::new();
        let sharing = joining.map(|joining| {
            let regions = Arc::clone(joining.regions());
            let sharing = tokio::spawn(joining.start(part.clone()));
            self.take_place(regions);
            sharing
        });
        let leave = CancellationToken::new();
        let carrying = self.share_store(leave.clone())?.map(tokio::spawn);
        let shared = Arc::clone(&self.shared);
        let (hand, hands) = mpsc::channel(SETTINGS.sockets.handover_max);
        let working = tokio::spawn(work(Arc::clone(&shared), hands, Arc::default(), stopping.clone()));
        let (max, max_age) = (self.config.connections_max, self.config.max_age);
        let connections = |port: Port| Connections::new(Gate::open(port), max, max_age, &shared.connections);
        let [of_grpc, of_http] = [Port::Grpc, Port::Http].map(connections);
        let accepting = [
            tokio::spawn(accept(grpc, vec![hand.clone()], of_grpc, stopping.clone())),
            tokio::spawn(accept(http, vec![hand], of_http, stopping.clone())),
        ];
        let writing = shared
            .writer
            .clone()
            .map(|writer| tokio::spawn(async move { writer.run_on(disk_latency).await }));

        let mut rounds = Rounds::begin();
        loop {
            tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                () = rounds.next(&shared) => {}
            }
        }

        shared.drain();
        // A connection that does not end in time is cut. A panic was printed when it happened.
        let _ = tokio::time::timeout(self.config.drain, working).await;
        for task in accepting {
            task.abort();
        }
        if let Some(sharing) = sharing {
            // The node shares its limits until no caller asks any more.
            part.cancel();
            let _ = sharing.await;
        }
        if let Some(carrying) = carrying {
            leave.cancel();
            let _ = carrying.await;
        }
        if let (Some(writer), Some(writing)) = (&shared.writer, writing) {
            writer.stop();
            let _ = writing.await;
        }
        self.close();
        shared.tell_warnings();
        Ok(())
    }
}
