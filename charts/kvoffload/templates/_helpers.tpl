{{/* Labels of every object. */}}
{{- define "kvoffload.labels" -}}
app.kubernetes.io/part-of: kvoffload
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels that select the operators' pods; they never change. */}}
{{- define "kvoffload.operatorLabels" -}}
app.kubernetes.io/name: kvoffload-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* An image reference: of (dict "image" VALUES "chart" .Chart). */}}
{{- define "kvoffload.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Lines "key: value" of the keys that are set; integers stay integers, however large. */}}
{{- define "kvoffload.fields" -}}
{{- range $key, $value := . }}
{{- if kindIs "invalid" $value }}
{{- else if or (kindIs "float64" $value) (kindIs "int64" $value) (kindIs "int" $value) }}
{{ $key }}: {{ int64 $value }}
{{- else if kindIs "map" $value }}
{{- $inner := include "kvoffload.fields" $value | trim }}
{{- if $inner }}
{{ $key }}:
  {{- $inner | nindent 2 }}
{{- end }}
{{- else }}
{{ $key }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Spec of the ClusterKVOffloadPolicy `default`; empty if no value is set. */}}
{{- define "kvoffload.clusterPolicySpec" -}}
{{- $load := .Values.clusterDefaults.load }}
{{- if not (or (kindIs "invalid" $load.minTokens) (kindIs "invalid" $load.maxTokens)) }}
{{- if gt (int64 $load.minTokens) (int64 $load.maxTokens) }}
{{- fail "clusterDefaults.load.minTokens must be less than or equal to clusterDefaults.load.maxTokens" }}
{{- end }}
{{- end }}
{{- include "kvoffload.fields" (dict "defaults" .Values.clusterDefaults "limits" .Values.clusterLimits "nodeBudget" .Values.nodeBudget) | trim }}
{{- end }}

{{/* What a container may do: nothing that the Pod Security Standard `restricted` forbids. */}}
{{- define "kvoffload.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* A volume with the credentials of the pod's ServiceAccount, which are not mounted by themselves. */}}
{{- define "kvoffload.credentialsVolume" -}}
name: credentials
projected:
  defaultMode: 0444
  sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: 3600
    - configMap:
        name: kube-root-ca.crt
        items:
          - key: ca.crt
            path: ca.crt
    - downwardAPI:
        items:
          - path: namespace
            fieldRef:
              apiVersion: v1
              fieldPath: metadata.namespace
{{- end }}

{{/* What one container c of an engine's pod is given, as CEL; the context is the list's name. */}}
{{- define "kvoffload.engineContainer" -}}
name: c.name,
resources: Object.spec.{{ . }}.resources{
  limits: c.?resources.?limits[?"kvoffload.io/agent"].hasValue() ? {} : {"kvoffload.io/agent": "1"},
  requests: c.?resources.?requests[?"kvoffload.io/agent"].hasValue() ? {} : {"kvoffload.io/agent": "1"}
},
env: [
  {"name": "KVOFFLOAD_SOCKET", "value": "/run/kvoffload/agent.sock"},
  {"name": "KVOFFLOAD_TOKEN_FILE", "value": "/var/run/secrets/kvoffload/token"}
].filter(e, !c.?env.orValue([]).exists(own, own.name == e.name))
  .map(e, Object.spec.{{ . }}.env{name: e.name, value: e.value}),
volumeMounts: c.?volumeMounts.orValue([]).exists(m, m.mountPath == "/var/run/secrets/kvoffload") ? [] :
  [Object.spec.{{ . }}.volumeMounts{name: "kvoffload-token", mountPath: "/var/run/secrets/kvoffload", readOnly: true}]
{{- end }}
