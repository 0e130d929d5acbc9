//! The sockets of a machine that callers connect to: TCP, or a socket in the file system for callers on this machine.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use socket2::{Domain, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use crate::{
    config::Address,
    serve::{Connection, Listener},
};

/// Connections that the system accepts before the node does.
const BACKLOG: i32 = 1_024;

/// Where callers connect.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    /// It is removed with this, before anybody can think that nobody listens there.
    Unix(SocketFile, UnixListener),
}

/// A socket's place in the file system.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// A connection.
pub(crate) type Stream = Either<TcpStream, UnixStream>;

impl Socket {
    /// Listens. A socket in the file system that nobody listens to any more is replaced.
    ///
    /// # Errors
    /// What the system says; or somebody listens there, or it is no socket.
    pub(crate) fn listen(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                // As tokio binds: a port that was just given up can be had again.
                let socket = socket2::Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
                socket.set_reuse_address(true)?;
                socket.bind(&(*address).into())?;
                socket.listen(BACKLOG)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Tcp(TcpListener::from_std(socket.into())?))
            }
            Address::Unix(path, mode) => {
                remove_stale(path)?;
                let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
                // What is bound has no more than these rights from the start on (Linux, unix(7)).
                rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(*mode))?;
                socket.bind(&socket2::SockAddr::unix(path)?)?;
                let file = SocketFile { path: path.clone(), inode: inode(path)? };
                // The umask may have taken some of them.
                fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
                socket.listen(BACKLOG)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Unix(file, UnixListener::from_std(socket.into())?))
            }
        }
    }

    /// Where it listens, with the port that it took.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?),
            Self::Unix(SocketFile { path, .. }, _) => Address::Unix(path.clone(), 0),
        })
    }
}

/// Removes a socket that a process left behind that did not stop cleanly.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(fault) if fault.kind() == ErrorKind::NotFound => return Ok(()),
        Err(fault) => return Err(fault),
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    let probe = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&socket2::SockAddr::unix(path)?) {
        Err(fault) if fault.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        // It would block where so many wait that there is no room for another.
        Err(fault) if fault.kind() != ErrorKind::WouldBlock => Err(fault),
        Ok(()) | Err(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another process listens there")),
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have another one there.
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // Whoever starts next removes it otherwise.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener for Socket {
    type Connection = Accepted;

    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => Ok(Accepted::Tcp(listener.accept().await?.0.into_std()?)),
            Self::Unix(_, listener) => Ok(Accepted::Unix(listener.accept().await?.0.into_std()?)),
        }
    }
}

impl Connection for Accepted {
    type Stream = Stream;

    fn open(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                let stream = TcpStream::from_std(stream)?;
                // Without the first, small answers wait for the peer's acknowledgement; the second notices a
                // peer that is gone without a request having to pay for it.
                let _ = stream.set_nodelay(true);
                let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keep_alive());
                Ok(Stream::Left(stream))
            }
            Self::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Stream::Right(UnixStream::from_std(stream)?))
            }
        }
    }

    fn from(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

/// A peer that says nothing for 25 s, asked three times, is gone.
fn keep_alive() -> socket2::TcpKeepalive {
    let (quiet, between) = (Duration::from_secs(10), Duration::from_secs(5));
    socket2::TcpKeepalive::new().with_time(quiet).with_interval(between).with_retries(3)
}
