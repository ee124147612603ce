{{- /* The pod template of members: what the chart says, then the user's, container by container and volume by volume. */ -}}
{{- define "rover.template" -}}
{{- $user := .Values.members.template | default dict }}
{{- $spec := $user.spec | default dict }}
{{- $main := dict }}
{{- $others := list }}
{{- range $spec.containers | default list }}{{ if eq .name "main" }}{{ $main = . }}{{ else }}{{ $others = append $others . }}{{ end }}{{ end }}
{{- $env := list }}
{{- if .Values.nats.url }}
{{- $env = list (dict "name" "ROVER_CREDENTIAL" "valueFrom" (dict "secretKeyRef" (dict "name" .Values.nats.secret "key" "credential"))) }}
{{- end }}
{{- $mounts := list (dict "name" "rover-state" "mountPath" "/var/lib/rover") (dict "name" "rover-staging" "mountPath" "/dev/shm") (dict "name" "rover-tmp" "mountPath" "/tmp") }}
{{- $volumes := list (dict "name" "rover-state" "emptyDir" dict) (dict "name" "rover-staging" "emptyDir" (dict "medium" "Memory" "sizeLimit" .Values.members.stagingSize)) (dict "name" "rover-tmp" "emptyDir" dict) }}
{{- if and (eq .Values.nodeAgent.mode "daemonset") .Values.nodeAgent.storage }}
{{- $mounts = append $mounts (dict "name" "rover-storage" "mountPath" "/var/lib/rover-checkpoints") }}
{{- $volumes = append $volumes (mergeOverwrite (dict "name" "rover-storage") (deepCopy .Values.nodeAgent.storage)) }}
{{- end }}
{{- $container := dict "imagePullPolicy" .Values.image.pullPolicy "securityContext" (dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL"))) }}
{{- $container = mergeOverwrite $container (deepCopy $main) (dict "name" "main" "volumeMounts" (concat $mounts ($main.volumeMounts | default list))) }}
{{- with concat $env ($main.env | default list) }}{{ $_ := set $container "env" . }}{{ end }}
{{- $base := dict "securityContext" (deepCopy .Values.podSecurityContext) }}
{{- with .Values.image.pullSecrets }}{{ $_ := set $base "imagePullSecrets" . }}{{ end }}
{{- $base = mergeOverwrite $base (deepCopy $spec) (dict "containers" (prepend $others $container) "volumes" (concat $volumes ($spec.volumes | default list))) }}
{{- dict "metadata" ($user.metadata | default dict) "spec" $base | toYaml }}
{{- end }}
