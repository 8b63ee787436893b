//! The event bus of this process: how it does, who listens, and publishing an event by hand.

use std::time::Duration;

use maud::html;
use relais_engine::{EngineError, OperatorRole, Problem};

use super::{clock, done, flash};
use crate::{
    error::{Answer, Explained as _, explain},
    form::Query,
    gate::{Sent, Visitor},
    layout::{Page, Part},
    show::{ago, badge, empty, number, span},
};

/// So many channels are shown.
const CHANNELS: usize = 200;

/// The page.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, language, now, engine) = (visitor.words(), visitor.taste.language, clock(), visitor.operator.engine());
    let (stats, channels, subscriptions) =
        (engine.event_bus_stats(), engine.event_channels(), engine.event_subscriptions());
    let n = |n: u64| number(language, n);
    let main = html! {
        div.head { h1 { (words.event_bus) } (badge(if stats.healthy { "up" } else { "away" }, &stats.state)) }
        (flash(&visitor, &query))
        @if let Some(error) = &stats.error { p.flash.bad role="alert" { (error) } }
        dl.tiles {
            div { dt { (words.transport) } dd.text { (stats.transport) } }
            div { dt { (words.published) } dd { (n(stats.published)) } }
            div { dt { (words.delivered) } dd { (n(stats.delivered)) } }
            div { dt { (words.failed) } dd { (n(stats.failed)) } }
            div { dt { (words.dropped) } dd { (n(stats.dropped)) } }
            div { dt { (words.dead_lettered) } dd { (n(stats.dead_lettered)) } }
            div { dt { (words.queued) } dd { (n(stats.queue_size as u64)) } }
            div { dt { (words.uptime) } dd.text { (span(language, Duration::from_millis(stats.uptime_ms))) } }
        }
        section aria-labelledby="subscriptions" { h2 #subscriptions { (words.subscriptions) }
            @if subscriptions.is_empty() { p.muted { (words.nobody_listens) } } @else {
                div.scroll tabindex="0" { table.dense {
                    thead { tr { th scope="col" { (words.name) } th scope="col" { (words.patterns) } th scope="col" { (words.kind) } th.right scope="col" { (words.queued) } th.right scope="col" { (words.delivered) } th.right scope="col" { (words.failed) } th.right scope="col" { (words.dropped) } } }
                    tbody { @for subscription in &subscriptions { tr {
                        th scope="row" { (subscription.name) } td { @for pattern in &subscription.patterns { code { (pattern) } " " } } td { (subscription.kind) }
                        td.right.num { (n(subscription.waiting as u64)) } td.right.num { (n(subscription.delivered)) } td.right.num { (n(subscription.failed)) } td.right.num { (n(subscription.dropped)) }
                    } } }
                } }
            } }
        section aria-labelledby="channels" { h2 #channels { (words.channels) }
            @if channels.is_empty() { (empty(words.no_channels, words.no_channels_hint)) } @else {
                div.scroll tabindex="0" { table.dense {
                    thead { tr { th scope="col" { (words.channel) } th.right scope="col" { (words.published) } th.right scope="col" { (words.delivered) } th.right scope="col" { (words.failed) } th.right scope="col" { (words.dropped) } th.right scope="col" { (words.last) } } }
                    tbody { @for channel in channels.iter().take(CHANNELS) { tr {
                        th scope="row" { code { (channel.channel) } } td.right.num { (n(channel.published)) } td.right.num { (n(channel.delivered)) } td.right.num { (n(channel.failed)) } td.right.num { (n(channel.dropped)) }
                        td.right { (ago(&visitor, channel.last_published.as_deref(), now)) }
                    } } }
                } }
            } }
        @if visitor.operator.may(OperatorRole::Operator) {
            section.card aria-labelledby="publish" { h2 #publish { (words.publish) }
                form.stack method="post" action="/ui/events" {
                    input type="hidden" name="csrf" value=(visitor.csrf);
                    input type="hidden" name="back" value="/ui/events";
                    div.field { label for="channel" { (words.channel) } input #channel name="channel" required placeholder="orders.created" spellcheck="false"; }
                    div.field { label for="payload" { (words.payload) } textarea #payload name="payload" rows="3" required spellcheck="false" { "{}" } }
                    button type="submit" { (words.publish) }
                } }
        }
    };
    Ok(Page::new(words.event_bus, Part::Events).live("anything").show(&visitor, Some(now), &main))
}

/// Publishes an event.
pub(crate) async fn publish(Sent(visitor, fields): Sent) -> Answer {
    let payload = serde_json::value::RawValue::from_string(fields.any("payload").unwrap_or_default().trim().to_owned());
    let payload = payload
        .map_err(|error| explain(&visitor, EngineError::Invalid(vec![Problem::at("payload", error.to_string())])))?;
    let published = visitor.operator.publish_event(fields.get("channel").unwrap_or_default(), payload).await;
    Ok(done(&fields, "published", Some(published.or_explain(&visitor)?.delivered as u64)))
}
