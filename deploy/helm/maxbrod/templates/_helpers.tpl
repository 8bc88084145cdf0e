{{- define "maxbrod.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "maxbrod.selector" -}}
app.kubernetes.io/name: maxbrod
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "maxbrod.labels" -}}
{{ include "maxbrod.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "maxbrod.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "maxbrod.name" . }}{{ else }}default{{ end }}
{{- end }}

{{/* The configuration file: that of the values, with the jobs, and with the files of Strimzi's secrets. */}}
{{- define "maxbrod.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if and .Values.run.enabled (not (hasKey $config "jobs")) -}}
{{- $_ := set $config "jobs" .Values.run.jobs -}}
{{- end -}}
{{- $strimzi := .Values.kafka.strimzi -}}
{{- if or $strimzi.caSecretName $strimzi.clientSecretName -}}
{{- $kafka := required "config.kafka is needed" $config.kafka -}}
{{- $tls := default (dict) $kafka.tls -}}
{{- if $strimzi.caSecretName -}}
{{- $_ := set $tls "ca_file" "/etc/maxbrod-kafka/ca/ca.crt" -}}
{{- end -}}
{{- if $strimzi.clientSecretName -}}
{{- $_ := set $tls "certificate_file" "/etc/maxbrod-kafka/client/user.crt" -}}
{{- $_ := set $tls "key_file" "/etc/maxbrod-kafka/client/user.key" -}}
{{- end -}}
{{- $_ := set $kafka "tls" $tls -}}
{{- if not (hasKey $kafka "security_protocol") -}}
{{- $_ := set $kafka "security_protocol" "SSL" -}}
{{- end -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}

{{/* What all pods have: account, security, volumes. */}}
{{- define "maxbrod.pod" -}}
serviceAccountName: {{ include "maxbrod.serviceAccount" . }}
automountServiceAccountToken: false
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: configuration
    configMap: {name: {{ include "maxbrod.name" . }}}
  - name: scratch
    emptyDir: {sizeLimit: {{ .Values.scratchSize }}}
  - name: cache
    emptyDir: {sizeLimit: {{ .Values.cacheSize }}}
  {{- with .Values.kafka.strimzi.caSecretName }}
  - name: kafka-ca
    secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
  {{- end }}
  {{- with .Values.kafka.strimzi.clientSecretName }}
  - name: kafka-client
    secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: user.crt, path: user.crt}, {key: user.key, path: user.key}]}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What all containers have. */}}
{{- define "maxbrod.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- $names := list .Values.kafka.secretName .Values.storage.secretName .Values.messages.secretName | compact | uniq }}
{{- if $names }}
envFrom:
  {{- range $names }}
  - secretRef: {name: {{ . }}}
  {{- end }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: configuration, mountPath: /etc/maxbrod, readOnly: true}
  - {name: scratch, mountPath: /tmp}
  - {name: cache, mountPath: /cache}
  {{- if .Values.kafka.strimzi.caSecretName }}
  - {name: kafka-ca, mountPath: /etc/maxbrod-kafka/ca, readOnly: true}
  {{- end }}
  {{- if .Values.kafka.strimzi.clientSecretName }}
  - {name: kafka-client, mountPath: /etc/maxbrod-kafka/client, readOnly: true}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
