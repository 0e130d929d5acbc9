//! The sockets that callers connect to: TCP, or a socket in the file system for callers on this machine.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use socket2::{Domain, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use crate::{
    config::Address,
    serve::{Connection, Listener},
    settings::SETTINGS,
};

/// Where callers connect.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    /// The file is removed before the listener closes, so that no caller finds a file without a listener.
    Unix(SocketFile, UnixListener),
}

/// The file of a socket.
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
    /// Listens. Replaces a socket in the file system that nobody listens to.
    ///
    /// # Errors
    /// The system refuses, another process listens there, or the file is no socket.
    pub(crate) fn listen(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                // As in tokio: a port that was just given up can be had again.
                let socket = socket2::Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
                socket.set_reuse_address(true)?;
                socket.bind(&(*address).into())?;
                socket.listen(SETTINGS.sockets.backlog)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Tcp(TcpListener::from_std(socket.into())?))
            }
            Address::Unix(path, mode) => {
                remove_stale(path)?;
                let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
                // The socket has only these rights from the start (Linux, unix(7)).
                rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(*mode))?;
                socket.bind(&socket2::SockAddr::unix(path)?)?;
                let file = SocketFile { path: path.clone(), inode: inode(path)? };
                // The umask may have removed some of the rights.
                fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
                socket.listen(SETTINGS.sockets.backlog)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Unix(file, UnixListener::from_std(socket.into())?))
            }
        }
    }

    /// The address, with the port that the system chose.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?),
            Self::Unix(SocketFile { path, .. }, _) => Address::Unix(path.clone(), 0),
        })
    }
}

/// Removes the socket of a process that did not stop cleanly.
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
        // The connection would block if the queue of the listener is full.
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
        // Another process may have made another socket there.
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // If this fails, the next start removes the file.
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
                // Without the first option, small answers wait for the peer's acknowledgement. The second
                // notices a peer that is gone, without a request having to pay for that.
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

/// When a silent peer counts as gone.
fn keep_alive() -> socket2::TcpKeepalive {
    let settings = SETTINGS.sockets;
    socket2::TcpKeepalive::new()
        .with_time(settings.keep_alive_quiet)
        .with_interval(settings.keep_alive_apart)
        .with_retries(settings.keep_alive_probes)
}
