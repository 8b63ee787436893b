{{/* The environment of every Relais process. Takes (dict "root" $ "roles" list "api" bool). */}}
{{- define "relais.serverEnv" -}}
{{- $v := .root.Values }}
- name: RELAIS_CONFIG
  value: /etc/relais/relais.toml
- name: RELAIS_SERVER_LISTEN
  value: "{{ $v.server.listenAddress }}:8080"
{{- with .roles }}
- name: RELAIS_SERVER_ROLES
  value: {{ join "," . | quote }}
{{- end }}
- name: RELAIS_SERVER_SHUTDOWN_GRACE
  value: {{ printf "%ds" (int $v.server.shutdownGraceSeconds) | quote }}
- name: RELAIS_DATABASE_MIGRATE
  value: {{ eq $v.database.migrate "start" | quote }}
{{ include "relais.databaseEnv" .root }}
{{- with include "relais.brokerEnv" .root }}
{{ . }}
{{- end }}
{{- with include "relais.managementEnv" .root | trim }}
{{ . }}
{{- end }}
{{- if .api }}
{{- with $v.admin.existingSecret }}
- name: RELAIS_ADMIN_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $v.admin.key }}
{{- end }}
{{- if or $v.declarations.content $v.declarations.existingConfigMap }}
- name: RELAIS_DECLARATIONS_FILE
  value: /etc/relais/declarations/{{ $v.declarations.key }}
- name: RELAIS_DECLARATIONS_PRUNE
  value: {{ $v.declarations.prune | quote }}
{{- end }}
{{- if $v.scaler.enabled }}
- name: RELAIS_SCALER_LISTEN
  value: "{{ $v.server.listenAddress }}:{{ $v.scaler.port }}"
{{- if $v.scaler.tlsSecret }}
- name: RELAIS_SCALER_CERTIFICATE
  value: /etc/relais/scaler/tls.crt
- name: RELAIS_SCALER_KEY
  value: /etc/relais/scaler/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- with $v.server.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* One Deployment of Relais processes. Takes (dict "root" $ "component" name "roles" list "replicas" n "resources" map). */}}
{{- define "relais.serverDeployment" -}}
{{- $root := .root }}
{{- $v := $root.Values }}
{{- $api := eq .component "api" }}
{{- $name := include "relais.fullname" $root }}
{{- $sqlite := eq $v.database.kind "sqlite" }}
{{- $declared := and $api (or $v.declarations.content $v.declarations.existingConfigMap) }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ if $api }}{{ $name }}{{ else }}{{ printf "%s-%s" $name .component }}{{ end }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "relais.labels" (dict "root" $root "component" .component "tier" "server") | nindent 4 }}
spec:
  {{- if not (and $api $v.server.autoscaling.enabled) }}
  replicas: {{ int .replicas }}
  {{- end }}
  {{- if $sqlite }}
  # Two processes must not have the file open at once.
  strategy: {type: Recreate}
  {{- else }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  {{- end }}
  selector:
    matchLabels:
      {{- include "relais.selectorLabels" (dict "root" $root "component" .component) | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "relais.labels" (dict "root" $root "component" .component "tier" "server") | nindent 8 }}
        {{- with $v.server.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        # Settings are read once: other settings, other pods. Declarations are watched, and are not counted here.
        checksum/settings: {{ include "relais.toml" $root | sha256sum }}
        {{- with $v.server.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "relais.serviceAccountName" $root }}
      automountServiceAccountToken: false
      # They would be variables RELAIS_…, which are taken for settings.
      enableServiceLinks: false
      {{- with $v.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.server.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        {{- toYaml $v.podSecurityContext | nindent 8 }}
      # The pause before SIGTERM, the grace of the server, and some seconds to write what was taken.
      terminationGracePeriodSeconds: {{ add (int $v.server.drainSeconds) (int $v.server.shutdownGraceSeconds) 10 }}
      {{- if eq $v.database.migrate "initContainer" }}
      initContainers:
        - name: migrate
          image: {{ include "relais.image" (dict "root" $root) }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          command: [/usr/local/bin/relais, migrate]
          env:
            - name: RELAIS_CONFIG
              value: /etc/relais/relais.toml
            {{- include "relais.databaseEnv" $root | nindent 12 }}
          securityContext:
            {{- toYaml $v.securityContext | nindent 12 }}
          resources:
            {{- toYaml .resources | nindent 12 }}
          volumeMounts:
            - {name: settings, mountPath: /etc/relais/relais.toml, subPath: relais.toml, readOnly: true}
            {{- if $sqlite }}
            - {name: data, mountPath: /var/lib/relais}
            {{- end }}
      {{- end }}
      containers:
        - name: relais
          image: {{ include "relais.image" (dict "root" $root) }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          command: [/usr/local/bin/relais, serve]
          env:
            {{- include "relais.serverEnv" (dict "root" $root "roles" .roles "api" $api) | nindent 12 }}
          ports:
            - {name: http, containerPort: 8080, protocol: TCP}
            {{- if and $api $v.scaler.enabled }}
            - {name: scaler, containerPort: {{ int $v.scaler.port }}, protocol: TCP}
            {{- end }}
          # Alive is not ready: a database that is away makes it not ready, and killing it would not bring that back.
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 10
            timeoutSeconds: 3
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 3
            failureThreshold: 2
          startupProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 1
            failureThreshold: 60
          {{- if $v.server.drainSeconds }}
          lifecycle:
            preStop:
              sleep: {seconds: {{ int $v.server.drainSeconds }}}
          {{- end }}
          securityContext:
            {{- toYaml $v.securityContext | nindent 12 }}
          resources:
            {{- toYaml .resources | nindent 12 }}
          volumeMounts:
            - {name: settings, mountPath: /etc/relais/relais.toml, subPath: relais.toml, readOnly: true}
            {{- if $declared }}
            # A directory, not a subPath: only so is an edit of the ConfigMap seen.
            - {name: declarations, mountPath: /etc/relais/declarations, readOnly: true}
            {{- end }}
            {{- if $sqlite }}
            - {name: data, mountPath: /var/lib/relais}
            {{- end }}
            {{- if and $api $v.scaler.enabled $v.scaler.tlsSecret }}
            - {name: scaler-tls, mountPath: /etc/relais/scaler, readOnly: true}
            {{- end }}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: settings
          configMap: {name: {{ $name }}-config}
        {{- if $declared }}
        - name: declarations
          configMap: {name: {{ $v.declarations.existingConfigMap | default (printf "%s-declarations" $name) }}}
        {{- end }}
        {{- if $sqlite }}
        - name: data
          persistentVolumeClaim: {claimName: {{ $v.database.sqlite.existingClaim | default (printf "%s-data" $name) }}}
        {{- end }}
        {{- if and $api $v.scaler.enabled $v.scaler.tlsSecret }}
        - name: scaler-tls
          secret: {secretName: {{ $v.scaler.tlsSecret }}, defaultMode: 288}
        {{- end }}
        - name: tmp
          emptyDir: {}
      {{- with $v.server.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.server.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.server.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if $v.server.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- range $v.server.topologySpreadConstraints }}
        - {{ toYaml . | nindent 10 | trim }}
          labelSelector:
            matchLabels:
              {{- include "relais.selectorLabels" (dict "root" $root "component" $.component) | nindent 14 }}
        {{- end }}
      {{- end }}
{{- end }}
