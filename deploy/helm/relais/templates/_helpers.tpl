{{/* Names. */}}
{{- define "relais.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "relais.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "relais.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "relais.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "relais.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "relais.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Labels that never change: what selectors use. Takes (dict "root" $ "component" name). */}}
{{- define "relais.selectorLabels" -}}
app.kubernetes.io/name: {{ include "relais.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* All labels. Takes (dict "root" $ "component" name "tier" "server" or "worker"). */}}
{{- define "relais.labels" -}}
{{ include "relais.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .tier }}
relais/tier: {{ . }}
{{- end }}
{{- end }}

{{/* An image. Takes (dict "root" $ "image" map); what the map leaves empty is Relais's own. */}}
{{- define "relais.image" -}}
{{- $own := .root.Values.image }}
{{- $image := .image | default dict }}
{{- $repository := $image.repository | default $own.repository }}
{{- $tag := $image.tag }}
{{- $digest := $image.digest }}
{{- if not $image.repository }}
{{- $tag = $tag | default $own.tag | default .root.Chart.AppVersion }}
{{- $digest = $digest | default $own.digest }}
{{- end }}
{{- if $digest }}
{{- printf "%s@%s" $repository $digest }}
{{- else if not $tag }}
{{- fail (printf "the image %s needs a tag or a digest" $repository) }}
{{- else if eq $tag "latest" }}
{{- fail (printf "the image %s has the tag latest: nobody could tell what runs; name a version" $repository) }}
{{- else }}
{{- printf "%s:%s" $repository $tag }}
{{- end }}
{{- end }}

{{/* The database. */}}
{{- define "relais.databaseCluster" -}}
{{- .Values.database.cluster.name | default (printf "%s-db" (include "relais.fullname" .)) }}
{{- end }}

{{- define "relais.databaseEnv" -}}
- name: RELAIS_DATABASE_URL
{{- if eq .Values.database.kind "sqlite" }}
  value: sqlite:/var/lib/relais/relais.db
{{- else }}
  valueFrom:
    secretKeyRef:
    {{- if .Values.database.existingSecret }}
      name: {{ .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
    {{- else }}
      name: {{ include "relais.databaseCluster" . }}-app
      key: uri
    {{- end }}
{{- end }}
{{- with .Values.database.encryption.existingSecret }}
- name: RELAIS_DATABASE_ENCRYPTION_KEYS
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.database.encryption.key }}
{{- end }}
{{- end }}

{{/* The broker. */}}
{{- define "relais.brokerCluster" -}}
{{- .Values.broker.cluster.name | default (printf "%s-mq" (include "relais.fullname" .)) }}
{{- end }}

{{- define "relais.brokerEnv" -}}
{{- if .Values.broker.enabled }}
- name: RELAIS_BROKER_URL
  valueFrom:
    secretKeyRef:
    {{- if .Values.broker.existingSecret }}
      name: {{ .Values.broker.existingSecret }}
      key: {{ .Values.broker.key }}
    {{- else }}
      name: {{ include "relais.brokerCluster" . }}-default-user
      key: connection_string
    {{- end }}
{{- end }}
{{- end }}

{{/* The broker's management API, where it is known; for servers only. */}}
{{- define "relais.managementEnv" -}}
{{- if .Values.broker.enabled }}
{{- if not .Values.broker.existingSecret }}
{{- range list "username" "password" }}
- name: BROKER_{{ upper . }}
  valueFrom:
    secretKeyRef:
      name: {{ include "relais.brokerCluster" $ }}-default-user
      key: {{ . }}
{{- end }}
- name: RELAIS_BROKER_MANAGEMENT_URL
  value: http://$(BROKER_USERNAME):$(BROKER_PASSWORD)@{{ include "relais.brokerCluster" . }}.{{ .Release.Namespace }}.svc:{{ int .Values.broker.managementPort }}
{{- else if .Values.broker.managementKey }}
- name: RELAIS_BROKER_MANAGEMENT_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.broker.existingSecret }}
      key: {{ .Values.broker.managementKey }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where the API is, from anywhere in the cluster. */}}
{{- define "relais.url" -}}
{{- printf "http://%s.%s.svc:%d" (include "relais.fullname" .) .Release.Namespace (int .Values.server.service.port) }}
{{- end }}

{{/* relais.toml. JSON's texts, numbers, booleans and lists are TOML's as well. */}}
{{- define "relais.toml" -}}
{{- range $section, $keys := .Values.server.settings }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{ end }}
{{- end }}

{{/* DNS, for egress. */}}
{{- define "relais.dnsEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end }}

{{/* What can not be meant. Called once. */}}
{{- define "relais.validate" -}}
{{- $v := .Values }}
{{- range $section, $keys := dict "database" (list "url") "broker" (list "url" "management_url") "admin" (list "token") }}
{{- range $keys }}
{{- if hasKey (index $v.server.settings $section | default dict) . }}
{{- fail (printf "server.settings.%s.%s would put a secret into a ConfigMap: name a Secret in %s.existingSecret instead" $section . $section) }}
{{- end }}
{{- end }}
{{- end }}
{{- if hasKey (index $v.server.settings "database" | default dict) "encryption_keys" }}
{{- fail "server.settings.database.encryption_keys would put a secret into a ConfigMap: name a Secret in database.encryption.existingSecret instead" }}
{{- end }}
{{- range $section, $keys := dict "server" (list "listen" "roles" "shutdown_grace") "database" (list "migrate") "declarations" (list "file" "prune") "scaler" (list "listen" "certificate" "key") }}
{{- range $keys }}
{{- if hasKey (index $v.server.settings $section | default dict) . }}
{{- fail (printf "server.settings.%s.%s is decided by another value of the chart" $section .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq $v.database.kind "sqlite" }}
{{- if or (ne (int $v.server.replicas) 1) $v.server.split $v.server.roles $v.server.autoscaling.enabled }}
{{- fail "database.kind sqlite is for one process with all roles: server.replicas must be 1, without roles, split and autoscaling" }}
{{- end }}
{{- if eq $v.database.migrate "job" }}
{{- fail "database.migrate job would open the SQLite file beside the server: use initContainer or start" }}
{{- end }}
{{- else }}
{{- if and $v.database.existingSecret (or $v.database.cluster.create $v.database.cluster.name) }}
{{- fail "database.existingSecret and database.cluster are both given: which one is it?" }}
{{- end }}
{{- if not (or $v.database.existingSecret $v.database.cluster.create $v.database.cluster.name) }}
{{- fail "the database is missing: give database.existingSecret, database.cluster.name or database.cluster.create (or database.kind sqlite)" }}
{{- end }}
{{- if and (eq $v.database.migrate "job") $v.database.cluster.create }}
{{- fail "database.migrate job runs before anything is installed, and the database is created by this release: use initContainer" }}
{{- end }}
{{- end }}
{{- if and $v.server.roles (not (has "api" $v.server.roles)) }}
{{- fail "server.roles must have api: the Service leads there; other roles can be split off" }}
{{- end }}
{{- if and $v.server.split (not $v.server.roles) }}
{{- fail "server.split gives roles to other processes: say in server.roles what is left (api at least)" }}
{{- end }}
{{- if $v.broker.enabled }}
{{- if and $v.broker.existingSecret (or $v.broker.cluster.create $v.broker.cluster.name) }}
{{- fail "broker.existingSecret and broker.cluster are both given: which one is it?" }}
{{- end }}
{{- if not (or $v.broker.existingSecret $v.broker.cluster.create $v.broker.cluster.name) }}
{{- fail "the broker is missing: give broker.existingSecret, broker.cluster.name or broker.cluster.create" }}
{{- end }}
{{- end }}
{{- if and $v.declarations.content $v.declarations.existingConfigMap }}
{{- fail "declarations.content and declarations.existingConfigMap are both given: which one is it?" }}
{{- end }}
{{- if and $v.server.ingress.enabled (not $v.server.ingress.host) }}
{{- fail "server.ingress.host is missing" }}
{{- end }}
{{- $names := list "api" "migrate" "scaler" "metrics" "db" "mq" "config" "declarations" "data" }}
{{- range $v.server.split }}
{{- if has .name $names }}
{{- fail (printf "the name %s is taken: names of split processes and workers are all different" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- range $v.workers }}
{{- $w := mergeOverwrite (deepCopy $v.workerDefaults) . }}
{{- if has .name $names }}
{{- fail (printf "the name %s is taken: names of split processes and workers are all different" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- if and (not $w.client.existingSecret) (or (eq $w.transport "http") (eq $w.scale.trigger "metrics-api")) }}
{{- fail (printf "worker %s: client.existingSecret is missing, the Secret with the credentials of a client that may work on %s" .name .service) }}
{{- end }}
{{- if and (or (eq $w.transport "rabbitmq") (eq $w.scale.trigger "rabbitmq")) (not $v.broker.enabled) }}
{{- fail (printf "worker %s uses rabbitmq: set broker.enabled, and say where the broker is" .name) }}
{{- end }}
{{- if and (eq $w.scale.trigger "rabbitmq") (ne $w.transport "rabbitmq") }}
{{- fail (printf "worker %s: the trigger rabbitmq counts a queue that a worker with transport http never empties" .name) }}
{{- end }}
{{- if and (eq $w.scale.trigger "external-push") (not $v.scaler.enabled) }}
{{- fail (printf "worker %s: the trigger external-push needs scaler.enabled" .name) }}
{{- end }}
{{- if and $w.runner (not $w.command) }}
{{- fail (printf "worker %s: command is missing, what `relais worker` runs for each task (or runner: false)" .name) }}
{{- end }}
{{- if and $w.image.repository $w.runner (not $w.inject) (hasKey . "inject" | not) }}
{{- fail (printf "worker %s: say whether the image has the program relais (inject: false) or is to be given it (inject: true)" .name) }}
{{- end }}
{{- if and (eq $w.kind "job") (ne (int $w.concurrency) 1) }}
{{- fail (printf "worker %s: a job takes one task, its concurrency is 1" .name) }}
{{- end }}
{{- if gt (int $w.scale.min) (int $w.scale.max) }}
{{- fail (printf "worker %s: scale.min is above scale.max" .name) }}
{{- end }}
{{- if and (eq $w.transport "rabbitmq") (gt (int $w.timeoutSeconds) (int $v.broker.consumerTimeoutSeconds)) }}
{{- fail (printf "worker %s: its tasks may take %d s, but RabbitMQ takes a message back after %d s without an acknowledgement: raise broker.consumerTimeoutSeconds (and the broker's consumer_timeout) or lower timeoutSeconds" .name (int $w.timeoutSeconds) (int $v.broker.consumerTimeoutSeconds)) }}
{{- end }}
{{- end }}
{{- end }}
