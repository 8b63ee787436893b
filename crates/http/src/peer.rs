//! The address that a request comes from, seen through trusted proxies.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::http::HeaderMap;
use ipnet::IpNet;

/// The address that a request comes from, as limits know it. In the request's extensions.
///
/// Of an IPv6 address only the network counts: whoever has one address has the 2^64 beside it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    /// What limits know of an address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.into()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
        }
    }

    /// The address, or the first one of its network.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

/// Reverse proxies that say truly whom they speak for, in `X-Forwarded-For`.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Reads networks (`10.0.0.0/8`) and addresses (`127.0.0.1`). The error is what can not be read.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        let read = |text: &String| {
            let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            network.map_err(|_| format!("{text:?} is neither a network like 10.0.0.0/8 nor an address"))
        };
        texts.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a connection from there is a proxy's.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Whom a request comes from: the last address in `X-Forwarded-For` that is no trusted proxy's, where the
    /// connection is. What stands before that, anybody may have written.
    pub(crate) fn peer(&self, connection: SocketAddr, headers: &HeaderMap) -> Peer {
        let mut address = connection.ip();
        let lines = headers.get_all("x-forwarded-for").iter().rev();
        // What can not be read ends the search: what stands before it was not written by a proxy.
        let mut named = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).map(|text| {
            let text = std::str::from_utf8(text).ok()?;
            text.trim().parse::<IpAddr>().ok()
        });
        while self.contains(address)
            && let Some(Some(before)) = named.next()
        {
            address = before;
        }
        Peer::of(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(proxies: &[&str], connection: &str, forwarded: &[&str]) -> String {
        let proxies: Vec<String> = proxies.iter().map(|text| (*text).to_owned()).collect();
        let headers =
            forwarded.iter().map(|line| ("x-forwarded-for".parse().unwrap(), line.parse().unwrap())).collect();
        let connection = SocketAddr::new(connection.parse().unwrap(), 1);
        TrustedProxies::parse(&proxies).unwrap().peer(connection, &headers).address().to_string()
    }

    #[test]
    fn only_a_trusted_proxy_sets_the_client_address() {
        assert_eq!(seen(&[], "192.0.2.1", &["198.51.100.7"]), "192.0.2.1", "anybody can write that");
        assert_eq!(seen(&["192.0.2.0/24"], "192.0.2.1", &["198.51.100.7"]), "198.51.100.7");
        assert_eq!(seen(&["192.0.2.0/24"], "192.0.2.1", &["1.1.1.1, 198.51.100.7"]), "198.51.100.7");
        assert_eq!(seen(&["192.0.2.0/24"], "192.0.2.1", &["198.51.100.7", "192.0.2.9"]), "198.51.100.7");
        assert_eq!(seen(&["192.0.2.1"], "192.0.2.1", &["nonsense"]), "192.0.2.1");
        assert_eq!(seen(&["192.0.2.1"], "192.0.2.1", &["1.1.1.1", "\u{ff}, 198.51.100.7"]), "198.51.100.7");
        assert_eq!(seen(&["192.0.2.1"], "192.0.2.1", &["1.1.1.1", "198.51.100.7, \u{ff}"]), "192.0.2.1");
        assert_eq!(seen(&["192.0.2.1"], "::ffff:192.0.2.1", &[]), "192.0.2.1");
        assert!(TrustedProxies::parse(&["10.0.0.0/40".to_owned()]).is_err());
    }

    #[test]
    fn one_ipv6_network_is_one_peer() {
        assert_eq!(Peer::of("2001:db8:1:2::1".parse().unwrap()), Peer::of("2001:db8:1:2:ffff::9".parse().unwrap()));
        assert_ne!(Peer::of("2001:db8:1:2::1".parse().unwrap()), Peer::of("2001:db8:1:3::1".parse().unwrap()));
    }
}
