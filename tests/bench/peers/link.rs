//! A link of TCP that can be cut: connections stay open, and nothing passes any more.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::process::Error;

/// The bytes that are passed on at a time.
const BYTES: usize = 65_536;

/// Its threads end when both ends of a connection have closed it, and at the latest with the process.
#[derive(Debug)]
pub(crate) struct TcpLink {
    pub(crate) address: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl TcpLink {
    /// A link to a server.
    pub(crate) fn start(to: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, is_cut) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let cut = Arc::clone(&is_cut);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(to) else { continue };
                let halves = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                for half in halves {
                    let (Ok(from), Ok(to)) = half else { continue };
                    let cut = Arc::clone(&cut);
                    thread::spawn(move || pass(from, to, &cut));
                }
            }
        });
        Ok(Self { address, is_cut })
    }

    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }
}

/// Passes bytes on until a side closes the connection.
fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let _ = to.set_nodelay(true);
    let mut bytes = vec![0; BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !is_cut.load(Ordering::Relaxed) && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The other side may have closed it already.
    let _ = to.shutdown(std::net::Shutdown::Write);
}
