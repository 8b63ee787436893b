//! Audiences: which are declared, who the members of a target are, and who decides that.

use axum::extract::State;
use maud::{Markup, html};
use relais_notify::{AudienceKey, Member, Notifications};
use relais_protocol::audience::AudienceState;

use super::{clock, flash, notifications::none_here};
use crate::{
    Ui,
    error::{Answer, Explained as _},
    form::{Query, segment},
    gate::Visitor,
    layout::{Page, Part},
    show::{badge, empty, number, visible},
};

/// So many members are shown.
const MOST: usize = 200;

/// The list, and the members of the target that was asked for.
pub(crate) async fn page(visitor: Visitor, State(ui): State<Ui>, Query(query): Query) -> Answer {
    let words = visitor.words();
    let Some(notifications) = &ui.options.notifications else { return Ok(none_here(&visitor)) };
    let audiences = visitor.operator.engine().audience_states().await.or_explain(&visitor)?;
    let asked = match (query.get("type"), query.get("target")) {
        (Some(kind), Some(target)) if !kind.is_empty() && !target.is_empty() => Some(AudienceKey::new(kind, target)),
        _ => None,
    };
    let main = html! {
        div.head { div { p.crumbs { a href="/ui/notifications" { (words.notifications) } } h1 { (words.audiences) } } }
        (flash(&visitor, &query))
        @if audiences.is_empty() { (empty(words.no_audiences, words.no_audiences_hint)) } @else { (table(&visitor, &audiences)) }
        div.columns {
            section.card aria-labelledby="look" { h2 #look { (words.members_of_target) } (form(&visitor, asked.as_ref())) }
            @if let Some(asked) = &asked { (members(&visitor, notifications, &audiences, asked).await?) }
        }
    };
    Ok(Page::new(words.audiences, Part::Notifications).show(&visitor, Some(clock()), &main))
}

fn table(visitor: &Visitor, audiences: &[AudienceState]) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        div.scroll tabindex="0" { table.dense {
            caption.sr-only { (words.audiences) }
            thead { tr {
                th scope="col" { (words.audience_type) } th scope="col" { (words.audience_target) } th.right scope="col" { (words.members) }
            } }
            tbody { @for audience in audiences { tr {
                @let declared = &audience.declaration;
                th scope="row" { (visible(&declared.kind)) }
                td.when {
                    @match &declared.target {
                        Some(target) => a href=(address(&declared.kind, target)) { (visible(target)) },
                        None => span.muted { "–" },
                    }
                    @if audience.removing { " " (badge("paused", words.being_removed)) }
                    @if let Some(trouble) = &audience.trouble { br; span.error { (trouble) } }
                }
                td.right.num { @if declared.target.is_some() { (number(language, audience.declared_members as u64)) } }
            } } }
        } }
    }
}

fn address(kind: &str, target: &str) -> String {
    format!("/ui/audiences?type={}&target={}", segment(kind), segment(target))
}

fn form(visitor: &Visitor, asked: Option<&AudienceKey>) -> Markup {
    let words = visitor.words();
    let (kind, target) = asked.map_or(("GROUP", ""), |asked| (&asked.kind, &asked.target));
    html! {
        form.stack method="get" action="/ui/audiences" {
            div.field { label for="type" { (words.audience_type) } input #type name="type" required value=(kind) spellcheck="false" autocomplete="off"; }
            div.field { label for="target" { (words.audience_target) } input #target name="target" required value=(target) spellcheck="false" autocomplete="off"; }
            button type="submit" { (words.show_members) }
        }
    }
}

async fn members(
    visitor: &Visitor,
    notifications: &Notifications,
    audiences: &[AudienceState],
    asked: &AudienceKey,
) -> Result<Markup, axum::response::Response> {
    let words = visitor.words();
    let mut found = notifications.list_members(asked, None, MOST + 1).await.or_explain(visitor)?;
    let more = found.len() > MOST;
    found.truncate(MOST);
    let is_declared = audiences.iter().any(|audience| {
        audience.declaration.kind == asked.kind && audience.declaration.target.as_ref() == Some(&asked.target)
    });
    Ok(html! {
        section.card aria-labelledby="members" {
            h2 #members { (visible(&asked.to_string())) }
            p.hint { (if is_declared { words.owned_by_declaration } else { words.owned_by_api }) }
            @if found.is_empty() { p.muted { (words.no_members_yet) } } @else {
                ul.chips { @for Member { key, .. } in &found {
                    li {
                        @if key.kind == relais_notify::USER { code.name { (visible(&key.target)) } }
                        @else { a href=(address(&key.kind, &key.target)) { (visible(&key.to_string())) } }
                    }
                } @if more { li.muted { (words.and_others) } } }
            }
        }
    })
}
