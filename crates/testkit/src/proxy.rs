//! A TCP proxy that can be cut, stalled and restored: the network between two processes, under the control of a test.
//!
//! `cut` is a cable pulled with both ends told (connections closed, new ones refused); `stall` is
//! the worse case, a peer that is there and silent. Does not delay, reorder or corrupt: TCP would
//! hide it anyway.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
};

use crate::port::free_port;

/// A proxy on a loopback port of its own, gone when dropped.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
}

/// Answered when it has taken effect, so that a test needs no sleep after it.
#[derive(Debug)]
struct Order {
    mode: Mode,
    done: oneshot::Sender<io::Result<()>>,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Forward,
    Stall,
    Cut,
    Abandon,
    Redirect(SocketAddr),
}

impl TcpProxy {
    /// Listens on a free loopback port and forwards every connection to `target`.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let listener = TcpListener::bind(address).await?;
        let (orders, receiver) = mpsc::channel(1);
        let task = tokio::spawn(run(listener, target, receiver));
        Ok(Self { address, orders, task })
    }

    /// Where to connect instead of the target.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection and refuses new ones, until [`restore`](Self::restore).
    pub async fn cut(&self) -> io::Result<()> {
        self.order(Mode::Cut).await
    }

    /// Accepts connections and keeps those that are open, but forwards nothing in either
    /// direction, until [`restore`](Self::restore). What is sent meanwhile is late, not lost.
    pub async fn stall(&self) -> io::Result<()> {
        self.order(Mode::Stall).await
    }

    /// Leaves every open connection open and silent for ever, also after a [`restore`](Self::restore); new ones are
    /// forwarded. What a failover looks like, or a firewall that forgot its connections.
    pub async fn abandon(&self) -> io::Result<()> {
        self.order(Mode::Abandon).await
    }

    /// Closes every connection and forwards new ones to another target: a name that leads to another server after a
    /// failover.
    pub async fn redirect(&self, target: SocketAddr) -> io::Result<()> {
        self.order(Mode::Redirect(target)).await
    }

    /// Forwards again, on the same address.
    pub async fn restore(&self) -> io::Result<()> {
        self.order(Mode::Forward).await
    }

    async fn order(&self, mode: Mode) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        let gone = |()| io::Error::other("the proxy's runtime has ended");
        self.orders.send(Order { mode, done }).await.map_err(|_| gone(()))?;
        answer.await.map_err(|_| gone(()))?
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Owns the listener and all connections, so that an order applies to all of them at once.
async fn run(listener: TcpListener, mut target: SocketAddr, mut orders: mpsc::Receiver<Order>) {
    let address = listener.local_addr();
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    let (mut flowing, mut flow) = watch::channel(true);
    // Of connections that were abandoned: as long as these are here, they wait.
    let mut abandoned = Vec::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some(Order { mode, done }) = order else { return };
                let mut result = Ok(());
                match mode {
                    Mode::Cut => {
                        listener = None;
                        connections.shutdown().await;
                    }
                    Mode::Forward | Mode::Stall => {
                        if listener.is_none() {
                            match rebind(&address).await {
                                Ok(bound) => listener = Some(bound),
                                Err(error) => result = Err(error),
                            }
                        }
                        flowing.send_replace(matches!(mode, Mode::Forward));
                    }
                    Mode::Redirect(other) => {
                        target = other;
                        connections.shutdown().await;
                    }
                    Mode::Abandon => {
                        flowing.send_replace(false);
                        let (next_flowing, next_flow) = watch::channel(true);
                        abandoned.push(std::mem::replace(&mut flowing, next_flowing));
                        flow = next_flow;
                    }
                }
                let _ = done.send(result);
            }
            accepted = accept(listener.as_ref()) => {
                // A client that left before it was accepted is its own business.
                if let Ok(client) = accepted {
                    connections.spawn(connection(client, target, flow.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn rebind(address: &io::Result<SocketAddr>) -> io::Result<TcpListener> {
    match address {
        Ok(address) => TcpListener::bind(address).await,
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

/// Never ready while there is no listener.
async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}

async fn connection(client: TcpStream, target: SocketAddr, flow: watch::Receiver<bool>) {
    // Behind a stall even the target does not hear of the connection.
    let mut gate = flow.clone();
    if gate.wait_for(|flowing| *flowing).await.is_err() {
        return;
    }
    // The client sees its connection closed: what it would see of a target that went away.
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    // Small requests and answers must not wait for each other's acknowledgements.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let _ =
        tokio::try_join!(forward(client_read, server_write, flow.clone()), forward(server_read, client_write, flow),);
}

/// Copies one direction until its end, then passes the end on.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut flow: watch::Receiver<bool>) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        // Asked after the read: bytes that arrive in a stall must not slip through.
        if flow.wait_for(|flowing| *flowing).await.is_err() {
            return Ok(());
        }
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}
