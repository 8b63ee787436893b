{{/* An entry of `workers` with the defaults for what it does not say, as YAML. Takes (dict "root" $ "worker" entry). */}}
{{- define "relais.worker" -}}
{{- $w := mergeOverwrite (deepCopy .root.Values.workerDefaults) (deepCopy .worker) }}
{{- $job := eq $w.kind "job" }}
{{- if not (int $w.graceSeconds) }}
{{- $_ := set $w "graceSeconds" (ternary 1780 100 $job) }}
{{- end }}
{{- $_ := set $w "queueName" ($w.queueName | default $w.service) }}
{{- $_ := set $w "fullname" (printf "%s-%s" (include "relais.fullname" .root) $w.name) }}
{{- $_ := set $w "component" (printf "worker-%s" $w.name) }}
{{- /* Whether the trigger's number includes tasks that a worker has: with RabbitMQ only its management API tells. */}}
{{- $management := or .root.Values.broker.managementKey (not .root.Values.broker.existingSecret) }}
{{- $_ := set $w "countsRunning" (or (ne $w.scale.trigger "rabbitmq") (not (empty $management))) }}
{{- toYaml $w }}
{{- end }}

{{/* What a worker is told by its environment. Takes (dict "root" $ "worker" merged). */}}
{{- define "relais.workerEnv" -}}
{{- $w := .worker }}
- name: RELAIS_URL
  value: {{ include "relais.url" .root }}
{{- if eq $w.transport "http" }}
- name: RELAIS_CLIENT
  valueFrom:
    secretKeyRef:
      name: {{ $w.client.existingSecret }}
      key: {{ $w.client.idKey }}
- name: RELAIS_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ $w.client.existingSecret }}
      key: {{ $w.client.secretKey }}
{{- else }}
{{ include "relais.brokerEnv" .root }}
{{- end }}
{{- if not $w.runner }}
- name: RELAIS_SERVICE
  value: {{ $w.service | quote }}
{{- if eq $w.transport "rabbitmq" }}
- name: RELAIS_QUEUE
  value: {{ $w.queueName | quote }}
{{- end }}
- name: RELAIS_CONCURRENCY
  value: {{ int $w.concurrency | quote }}
- name: RELAIS_GRACE
  value: {{ printf "%ds" (int $w.graceSeconds) | quote }}
{{- if int $w.timeoutSeconds }}
- name: RELAIS_TIMEOUT
  value: {{ printf "%ds" (int $w.timeoutSeconds) | quote }}
{{- end }}
- name: RELAIS_ONCE
  value: {{ eq $w.kind "job" | quote }}
{{- if and (eq $w.kind "job") (int $w.idleSeconds) }}
- name: RELAIS_IDLE
  value: {{ printf "%ds" (int $w.idleSeconds) | quote }}
{{- end }}
- name: RELAIS_INTERRUPTIBLE
  value: {{ $w.interruptible | quote }}
{{- end }}
{{- with $w.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The pod of a worker, the same for a Deployment and for a Job. Takes (dict "root" $ "worker" merged). */}}
{{- define "relais.workerPod" -}}
{{- $root := .root }}
{{- $v := $root.Values }}
{{- $w := .worker }}
{{- $job := eq $w.kind "job" }}
{{- $relais := ternary "/relais/relais" "/usr/local/bin/relais" $w.inject }}
metadata:
  labels:
    {{- include "relais.labels" (dict "root" $root "component" $w.component "tier" "worker") | nindent 4 }}
    {{- with $w.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or $job $w.podAnnotations }}
  annotations:
    {{- if $job }}
    # What it does can not be interrupted: autoscalers of nodes leave it alone.
    cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
    karpenter.sh/do-not-disrupt: "true"
    {{- end }}
    {{- with $w.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "relais.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $w.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if $job }}
  restartPolicy: Never
  {{- end }}
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  # The grace of the worker, ten seconds for what must be stopped after it, and ten to say what became of the tasks.
  terminationGracePeriodSeconds: {{ add (int $w.graceSeconds) 20 }}
  {{- if $w.inject }}
  initContainers:
    - name: relais
      image: {{ include "relais.image" (dict "root" $root) }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      command: [cp, /usr/local/bin/relais, /relais/relais]
      securityContext:
        {{- toYaml $v.securityContext | nindent 8 }}
      resources:
        requests: {cpu: 10m, memory: 16Mi}
        limits: {memory: 128Mi}
      volumeMounts:
        - {name: relais, mountPath: /relais}
  {{- end }}
  containers:
    - name: worker
      image: {{ include "relais.image" (dict "root" $root "image" $w.image) }}
      imagePullPolicy: {{ $w.image.pullPolicy | default $v.image.pullPolicy }}
      {{- if $w.runner }}
      command: [{{ $relais }}, worker]
      args:
        - --service={{ $w.service }}
        {{- if eq $w.transport "rabbitmq" }}
        - --queue={{ $w.queueName }}
        {{- end }}
        - --concurrency={{ int $w.concurrency }}
        {{- if $w.interruptible }}
        - --interruptible
        - --kill-after={{ int $w.graceSeconds }}s
        {{- else }}
        - --grace={{ int $w.graceSeconds }}s
        - --kill-after=10s
        {{- end }}
        {{- if int $w.timeoutSeconds }}
        - --timeout={{ int $w.timeoutSeconds }}s
        {{- end }}
        {{- if $job }}
        - --once
        {{- if int $w.idleSeconds }}
        - --idle={{ int $w.idleSeconds }}s
        {{- end }}
        {{- end }}
        {{- if int $w.healthPort }}
        - --health={{ $v.server.listenAddress }}:{{ int $w.healthPort }}
        {{- end }}
        - --
        {{- toYaml $w.command | nindent 8 }}
      {{- else }}
      {{- with $w.command }}
      command:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      env:
        {{- include "relais.workerEnv" . | nindent 8 }}
      {{- with $w.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if and $w.runner (int $w.healthPort) }}
      ports:
        - {name: health, containerPort: {{ int $w.healthPort }}, protocol: TCP}
      {{- if not $job }}
      livenessProbe:
        httpGet: {path: /livez, port: health}
        periodSeconds: 10
        timeoutSeconds: 3
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 5
        timeoutSeconds: 3
      {{- end }}
      {{- end }}
      securityContext:
        {{- toYaml $v.securityContext | nindent 8 }}
      resources:
        {{- toYaml $w.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if $w.inject }}
        - {name: relais, mountPath: /relais, readOnly: true}
        {{- end }}
        {{- with $w.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if $w.inject }}
    - name: relais
      emptyDir: {}
    {{- end }}
    {{- with $w.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $w.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $w.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $w.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* What makes KEDA act. Takes (dict "root" $ "worker" merged). */}}
{{- define "relais.trigger" -}}
{{- $root := .root }}
{{- $v := $root.Values }}
{{- $w := .worker }}
{{- $target := ternary 1 (int $w.scale.target) (eq $w.kind "job") }}
- type: {{ $w.scale.trigger }}
  {{- if eq $w.scale.trigger "metrics-api" }}
  metadata:
    url: {{ printf "%s/v1/services/%s/backlog" (include "relais.url" $root) (urlquery $w.service) }}
    valueLocation: data.backlog
    targetValue: {{ $target | quote }}
    activationTargetValue: {{ int $w.scale.activation | quote }}
    authMode: basic
  authenticationRef: {name: {{ $w.fullname }}}
  {{- else if eq $w.scale.trigger "rabbitmq" }}
  metadata:
    mode: QueueLength
    queueName: {{ $w.queueName }}-in
    value: {{ $target | quote }}
    activationValue: {{ int $w.scale.activation | quote }}
    {{- if $v.broker.existingSecret }}
    {{- if $v.broker.managementKey }}
    protocol: http
    vhostName: {{ $v.broker.vhost }}
    {{- else }}
    # Only what waits is counted, not what workers have taken.
    protocol: amqp
    {{- end }}
    {{- else }}
    # Over http what workers have taken is counted too; over amqp it is not.
    protocol: http
    host: {{ printf "http://%s.%s.svc:%d/" (include "relais.brokerCluster" $root) $root.Release.Namespace (int $v.broker.managementPort) }}
    vhostName: /
    {{- end }}
  authenticationRef: {name: {{ $w.fullname }}}
  {{- else }}
  metadata:
    scalerAddress: {{ printf "%s-scaler.%s.svc:%d" (include "relais.fullname" $root) $root.Release.Namespace (int $v.scaler.port) }}
    service: {{ $w.service | quote }}
    targetBacklog: {{ $target | quote }}
    activationBacklog: {{ int $w.scale.activation | quote }}
  {{- if $v.scaler.tlsSecret }}
  authenticationRef: {name: {{ $w.fullname }}}
  {{- end }}
  {{- end }}
{{- end }}

{{/* With what KEDA asks. Takes (dict "root" $ "worker" merged); empty if it needs nothing. */}}
{{- define "relais.triggerAuthentication" -}}
{{- $v := .root.Values }}
{{- $w := .worker }}
{{- if eq $w.scale.trigger "metrics-api" }}
- {parameter: username, name: {{ $w.client.existingSecret }}, key: {{ $w.client.idKey }}}
- {parameter: password, name: {{ $w.client.existingSecret }}, key: {{ $w.client.secretKey }}}
{{- else if eq $w.scale.trigger "rabbitmq" }}
{{- if $v.broker.existingSecret }}
- {parameter: host, name: {{ $v.broker.existingSecret }}, key: {{ $v.broker.managementKey | default $v.broker.key }}}
{{- else }}
- {parameter: username, name: {{ include "relais.brokerCluster" .root }}-default-user, key: username}
- {parameter: password, name: {{ include "relais.brokerCluster" .root }}-default-user, key: password}
{{- end }}
{{- else if $v.scaler.tlsSecret }}
- {parameter: caCert, name: {{ $v.scaler.tlsSecret }}, key: ca.crt}
{{- end }}
{{- end }}
