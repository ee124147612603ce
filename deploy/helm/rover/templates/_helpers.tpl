{{- define "rover.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "rover.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rover.labels" -}}
{{ include "rover.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "rover.image" -}}
{{- with .Values.image }}{{ if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else }}{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}{{ end }}{{ end }}
{{- end }}

{{- define "rover.keys" -}}
{{ include "rover.name" . }}-keys
{{- end }}

{{- /* The name that the broker's certificate has; it is the same in every namespace. */ -}}
{{- define "rover.broker" -}}
{{ include "rover.name" . }}-broker.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* Where the servers of a broker of three reach one another. */ -}}
{{- define "rover.clusterPort" -}}
6222
{{- end }}

{{- /* NAME=VALUE of all processes: three servers elect a leader in seconds, in which a master must not lose its place. */ -}}
{{- define "rover.settings" -}}
{{- $given := .Values.settings }}
{{- if and (not .Values.nats.url) (gt (int .Values.nats.replicas) 1) (not (contains "leadership.master_ttl=" (join " " $given))) }}
{{- $given = append $given "leadership.master_ttl=15s" }}
{{- end }}
{{- toJson $given }}
{{- end }}

{{- define "rover.url" -}}
{{ .Values.nats.url | default (printf "tls://%s:%d" (include "rover.broker" .) (int .Values.nats.port)) }}
{{- end }}

{{- /* What the broker may store, as an argument of what shows or minds it; of another broker as far as it is said. */ -}}
{{- define "rover.maxStore" -}}
{{- with ternary .Values.nats.maxStore .Values.nats.store.size (ne .Values.nats.url "") }}
- --max-store={{ . }}B
{{- end }}
{{- end }}

{{- define "rover.namespaces" -}}
{{ .Values.watchNamespaces | default (list .Release.Namespace) | toJson }}
{{- end }}

{{- /* Names of tenants: each once, and with a namespace that is followed. */ -}}
{{- define "rover.tenants" -}}
{{- $names := list }}
{{- $followed := include "rover.namespaces" . | fromJsonArray }}
{{- range .Values.tenants }}
{{- if has .name $names }}{{ fail (printf "tenants: %s is there twice" .name) }}{{ end }}
{{- if not (has .name $followed) }}{{ fail (printf "tenants: RoverJobs of %s are in the namespace %s, which watchNamespaces does not name: set it to %s,%s" .name .name (join "," $followed) .name) }}{{ end }}
{{- $names = append $names .name }}
{{- end }}
{{- if has (first $followed) $names }}{{ fail (printf "tenants: the first of watchNamespaces, %s, holds what is no tenant's: name another one first" (first $followed)) }}{{ end }}
{{- toJson $names }}
{{- end }}

{{- /* Of every pod but those of jobs. */ -}}
{{- define "rover.pod" -}}
securityContext: {{ toYaml .Values.podSecurityContext | nindent 2 }}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "rover.priority" -}}
{{- if or .Values.priorityClass.create .Values.priorityClass.name }}
priorityClassName: {{ .Values.priorityClass.name | default (include "rover.name" .) }}
{{- end }}
{{- end }}

{{- define "rover.spares" -}}
{{- if or .Values.spares.create .Values.spares.name -}}
{{ .Values.spares.name | default (printf "%s-%s-spares" (include "rover.name" .) .Release.Namespace) }}
{{- end }}
{{- end }}

{{- define "rover.container" -}}
image: {{ include "rover.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* What a process shows to the broker: keys of ours, or what the owner of another broker gave. */ -}}
{{- define "rover.shown" -}}
{{- if .Values.nats.url }}
- name: ROVER_CREDENTIAL
  valueFrom: {secretKeyRef: {name: {{ .Values.nats.secret }}, key: credential}}
{{- else }}
- {name: ROVER_KEYS, value: /run/rover/keys}
{{- end }}
{{- end }}

{{- define "rover.keyMount" -}}
{{- if not .Values.nats.url }}
- {name: keys, mountPath: /run/rover/keys, readOnly: true}
{{- end }}
{{- end }}

{{- /* What one process needs of the keys (rover kube prepare): (list . "broker"). */ -}}
{{- define "rover.keyVolume" -}}
{{- $root := index . 0 }}
{{- if not $root.Values.nats.url }}
- name: keys
  secret: {secretName: {{ include "rover.keys" $root }}-{{ index . 1 }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- /* All Secrets that `rover kube prepare` makes. */ -}}
{{- define "rover.secrets" -}}
{{- $keys := include "rover.keys" . }}
{{- list $keys (printf "%s-broker" $keys) (printf "%s-brain" $keys) (printf "%s-operator" $keys) (printf "%s-web" $keys) (include "rover.agent" .) | toJson }}
{{- end }}

{{- define "rover.answersPolicy" -}}
{{ include "rover.name" . }}-{{ .Release.Namespace }}-answers
{{- end }}
{{- define "rover.agent" -}}
{{ include "rover.name" . }}-node-agent
{{- end }}

{{- define "rover.agentMemory" -}}
{{ .Values.nodeAgent.memory | default (printf "/dev/shm/rover-%s-%s" .Release.Namespace .Release.Name) }}
{{- end }}

{{- /* Whether agents get their rights by the tokens of their pods: of our own broker; another asks all for one word. */ -}}
{{- define "rover.agentsAsk" -}}
{{ if and (eq .Values.nodeAgent.mode "daemonset") (not .Values.nats.url) }}yes{{ end }}
{{- end }}
