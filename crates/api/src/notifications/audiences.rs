//! Routes of clients for audiences: who belongs to which target.

use axum::extract::{RawQuery, Request, State};
use relais_engine::Operator;
use relais_notify::{
    AudienceKey, MembersChange,
    wire::{MembersAnswer, MembersPage, MembersRequest, TargetName},
};
use relais_protocol::{ErrorNumber, Success};

use super::emit::lacks;
use crate::{
    App,
    access::Caller,
    admin::{Answer, answer},
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// The most members in one call.
const MOST: usize = 10_000;

/// A page of members, unless a call asks for less.
const PAGE: usize = 1000;

fn check_names(key: &AudienceKey, change: &MembersChange) -> Result<(), ApiError> {
    let (MembersChange::Set(keys) | MembersChange::Add(keys) | MembersChange::Remove(keys)) = change;
    let good = |name: &str| (1..=200).contains(&name.len()) && !name.chars().any(char::is_control);
    match keys.iter().chain([key]).position(|key| !good(&key.kind) || !good(&key.target)) {
        Some(place) => {
            let message = "types and targets have 1 to 200 bytes and no control characters";
            Err(ApiError::at(ErrorNumber::InvalidMembers, format!("/members/{place}"), message))
        }
        None => Ok(()),
    }
}

impl App {
    /// The target, if the caller may change its members.
    async fn own_audience(&self, caller: &Caller, kind: String, target: String) -> Result<AudienceKey, ApiError> {
        let client = self.client(caller).await?;
        if client.notifications.may_change_audience(&kind) {
            Ok(AudienceKey { kind, target })
        } else {
            Err(lacks("audience", &kind))
        }
    }

    async fn change_audience(&self, key: AudienceKey, change: MembersChange) -> Answer<MembersAnswer> {
        check_names(&key, &change)?;
        let changed = self.notifications()?.change_members(key, change).await?;
        answer(MembersAnswer { joined: changed.joined, left: changed.left })
    }

    /// The same, by an operator.
    pub(super) async fn change_any_audience(
        &self,
        operator: &Operator,
        key: AudienceKey,
        change: MembersChange,
    ) -> Answer<MembersAnswer> {
        check_names(&key, &change)?;
        let name = key.to_string();
        let changed = self.notifications()?.change_members(key, change);
        let changed = operator.act_elsewhere("audience.members", &name, changed).await??;
        answer(MembersAnswer { joined: changed.joined, left: changed.left })
    }

    pub(super) async fn members(&self, request: Request) -> Result<Vec<AudienceKey>, ApiError> {
        let MembersRequest { members } = self.json(request).await?;
        if members.len() > MOST {
            let message = format!("at most {MOST} members are taken at once");
            return Err(ApiError::at(ErrorNumber::InvalidMembers, "/members", message));
        }
        Ok(members.into_iter().map(AudienceKey::from).collect())
    }

    /// A page of members, for clients and operators.
    pub(super) async fn members_page(&self, key: AudienceKey, query: Option<&str>) -> Answer<MembersPage> {
        let query = Query::parse(query, &["limit", "after"])?;
        let limit = query.number("limit", PAGE, MOST)?;
        let after = query.get("after").map(|text| {
            let read = serde_json::from_str::<(String, String)>(text);
            read.map(|(kind, target)| AudienceKey { kind, target }).map_err(|_| {
                ApiError::at(ErrorNumber::InvalidParameter, "after", "must be one that an answer gave as next")
            })
        });
        let members = self.notifications()?.list_members(&key, after.transpose()?, limit).await?;
        let last = members.last().filter(|_| members.len() == limit);
        let next = last.and_then(|last| serde_json::to_string(&(&last.key.kind, &last.key.target)).ok());
        answer(MembersPage { members: members.into_iter().map(|member| TargetName::from(member.key)).collect(), next })
    }
}

/// The members of an audience
#[utoipa::path(get, path = "/v1/audiences/{type}/{target}/members", operation_id = "listAudienceMembers",
    tag = "Notifications", security(("basic" = [])),
    params(
        ("type" = String, Path, description = "The type of audience"),
        ("target" = String, Path, description = "The target"),
        ("limit" = Option<u32>, Query, description = "At most so many; 1,000 if absent", minimum = 1, maximum = 10000),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "In the order of their names", body = Success<MembersPage>), Refusals))]
pub(crate) async fn list(
    State(app): State<App>,
    Path((kind, target)): Path<(String, String)>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Answer<MembersPage> {
    let key = app.own_audience(&caller, kind, target).await?;
    app.members_page(key, query.as_deref()).await
}

/// Set the members of an audience
///
/// It has exactly these from now on. Needs the right `audience` for the type.
#[utoipa::path(put, path = "/v1/audiences/{type}/{target}/members", operation_id = "putAudienceMembers",
    tag = "Notifications", security(("basic" = [])),
    params(("type" = String, Path, description = "The type of audience"), ("target" = String, Path, description = "The target")),
    request_body = MembersRequest,
    responses((status = 200, description = "What has changed", body = Success<MembersAnswer>), Refusals))]
pub(crate) async fn set(
    State(app): State<App>,
    Path((kind, target)): Path<(String, String)>,
    caller: Caller,
    request: Request,
) -> Answer<MembersAnswer> {
    let key = app.own_audience(&caller, kind, target).await?;
    let members = app.members(request).await?;
    app.change_audience(key, MembersChange::Set(members)).await
}

/// Add members to an audience
#[utoipa::path(post, path = "/v1/audiences/{type}/{target}/members", operation_id = "changeAudienceMembers",
    tag = "Notifications", security(("basic" = [])),
    params(("type" = String, Path, description = "The type of audience"), ("target" = String, Path, description = "The target")),
    request_body = MembersRequest,
    responses((status = 200, description = "What has changed", body = Success<MembersAnswer>), Refusals))]
pub(crate) async fn add(
    State(app): State<App>,
    Path((kind, target)): Path<(String, String)>,
    caller: Caller,
    request: Request,
) -> Answer<MembersAnswer> {
    let key = app.own_audience(&caller, kind, target).await?;
    let members = app.members(request).await?;
    app.change_audience(key, MembersChange::Add(members)).await
}

/// Remove a member from an audience
#[utoipa::path(delete, path = "/v1/audiences/{type}/{target}/members/{memberType}/{member}",
    operation_id = "deleteAudienceMember", tag = "Notifications", security(("basic" = [])),
    params(
        ("type" = String, Path, description = "The type of audience"),
        ("target" = String, Path, description = "The target"),
        ("memberType" = String, Path, description = "`USER`, or another type"),
        ("member" = String, Path, description = "The user, or the target"),
    ),
    responses((status = 200, description = "What has changed", body = Success<MembersAnswer>), Refusals))]
pub(crate) async fn remove(
    State(app): State<App>,
    Path((kind, target, member_kind, member)): Path<(String, String, String, String)>,
    caller: Caller,
) -> Answer<MembersAnswer> {
    let key = app.own_audience(&caller, kind, target).await?;
    app.change_audience(key, MembersChange::Remove(vec![AudienceKey::new(member_kind, member)])).await
}
