module github.com/longshore-dev/longshore

go 1.26.6

require (
	cuelabs.dev/go/oci/ociregistry v0.0.0-20251212221603-3adeb8663819 // the registry of longshore serve; tests: a registry with the referrers API
	github.com/Azure/azure-sdk-for-go/sdk/azcore v1.21.1 // errors of its key vault, told apart
	github.com/CycloneDX/cyclonedx-go v0.12.0 // releases: SBOMs of our programs
	github.com/Masterminds/semver/v3 v3.5.0 // promote: which revision is the newest; versions of releases
	github.com/ThalesIgnite/crypto11 v1.2.5 // PKCS#11 tokens that sign
	github.com/compose-spec/compose-go/v2 v2.16.2 // merge, interpolation and profiles of Compose files
	github.com/containerd/cgroups/v3 v3.1.3 // limits and usage of containers
	github.com/containerd/containerd/api v1.12.0 // containerd's services and events
	github.com/containerd/containerd/v2 v2.4.2 // the client of containerd, its OCI and seccomp parts
	github.com/containerd/continuity v0.5.0 // copies of directories with owners and attributes
	github.com/containerd/errdefs v1.0.0 // containerd's errors
	github.com/containerd/errdefs/pkg v0.3.0 // containerd's errors across gRPC
	github.com/containerd/log v0.2.0 // mutes the client's own log
	github.com/containerd/platforms v1.0.0-rc.5 // which image of an index a machine can run
	github.com/containerd/typeurl/v2 v2.3.0 // containerd's events and task statistics
	github.com/containernetworking/cni v1.3.1 // networks that a site declares
	github.com/cyphar/filepath-securejoin v0.7.0 // paths inside a container's root, safe from links
	github.com/distribution/distribution/v3 v3.1.2 // tests: a registry without the referrers API
	github.com/distribution/reference v0.6.0 // names of images as people write them
	github.com/docker/go-units v0.5.0 // tests: sizes as Compose's own tests write them
	github.com/dustin/go-humanize v1.1.0 // sizes in flags, numbers with commas
	github.com/go-jose/go-jose/v4 v4.1.5 // tests: tokens of registries and identity providers
	github.com/google/certificate-transparency-go v1.3.3 // timestamps that a Fulcio certificate carries
	github.com/google/go-cmp v0.7.0 // differences that tests print; none in a program
	github.com/google/go-containerregistry v0.22.1 // tests: images, and a lax registry
	github.com/google/go-tpm v0.9.8 // the device's key in a TPM
	github.com/google/nftables v0.3.0 // published ports and isolation of networks
	github.com/google/uuid v1.6.0 // ids of deployments and of databases
	github.com/hashicorp/vault/api v1.22.0 // errors of Vault, told apart
	github.com/miekg/pkcs11 v1.1.2 // which tokens and keys there are
	github.com/moby/sys/mountinfo v0.7.2 // what is mounted on a device that is wiped
	github.com/moby/sys/signal v0.7.1 // names of signals
	github.com/moby/sys/user v0.4.1 // users and groups of an image's files
	github.com/opencontainers/go-digest v1.0.0 // digests
	github.com/opencontainers/image-spec v1.1.1 // descriptors, manifests, indexes
	github.com/opencontainers/runtime-spec v1.3.0 // the specification of a container
	github.com/pelletier/go-toml/v2 v2.4.3 // containerd's hosts.toml
	github.com/pressly/goose/v3 v3.27.1 // versions of the database
	github.com/prometheus/client_golang v1.25.0 // metrics of the endpoint
	github.com/robfig/cron/v3 v3.0.1 // cron expressions of windows
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.1 // the published schemas agree with the readers
	github.com/secure-systems-lab/go-securesystemslib v0.11.0 // DSSE envelopes and encrypted key files
	github.com/sigstore/cosign/v2 v2.6.5 // ambient identities; tests: the real cosign
	github.com/sigstore/protobuf-specs v0.5.1 // signature bundles
	github.com/sigstore/rekor v1.5.3 // entries of the transparency log
	github.com/sigstore/sigstore v1.10.8 // keys and signatures
	github.com/sigstore/sigstore-go v1.3.0 // keyless signatures, verified offline
	github.com/sigstore/sigstore/pkg/signature/kms/aws v1.10.8 // keys in AWS KMS
	github.com/sigstore/sigstore/pkg/signature/kms/azure v1.10.8 // keys in Azure Key Vault
	github.com/sigstore/sigstore/pkg/signature/kms/gcp v1.10.8 // keys in Google Cloud KMS
	github.com/sigstore/sigstore/pkg/signature/kms/hashivault v1.10.8 // keys in Vault
	github.com/sirupsen/logrus v1.10.2 // mutes what libraries log
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.10 // flags
	github.com/vbauerster/mpb/v8 v8.9.3 // progress
	github.com/vishvananda/netlink v1.3.1 // links, addresses and routes
	github.com/vishvananda/netns v0.0.5 // network namespaces
	go.etcd.io/bbolt v1.5.0 // the device's durable state
	go.opentelemetry.io/proto/otlp v1.11.0 // tests: traces of the agent as their receiver reads them
	go.uber.org/goleak v1.3.0 // tests: every goroutine has ended
	go.yaml.in/yaml/v4 v4.0.0 // YAML with positions
	golang.org/x/crypto v0.58.0 // PINs of the panel; tests: password files of registries
	golang.org/x/net v0.61.0 // proxies as the environment names them
	golang.org/x/sync v0.24.0 // groups of goroutines with a limit
	golang.org/x/sys v0.49.0 // system calls that the standard library lacks
	golang.org/x/term v0.47.0 // raw mode and width of a terminal
	golang.org/x/time v0.16.0 // rate limits of the endpoint and of transfers
	google.golang.org/grpc v1.83.2 // connections to containerd; codes of key services
	google.golang.org/protobuf v1.36.12 // messages of containerd, of bundles, and of traces
	gotest.tools/gotestsum v1.13.0 // tests: a line for each package
	maragu.dev/gomponents v1.2.0 // HTML of the panel and of the fleet page, escaped
	modernc.org/sqlite v1.53.0 // the database of the endpoint, without cgo
	oras.land/oras-go/v2 v2.6.4 // registries, layouts, copies
	rsc.io/qr v0.2.0 // the fingerprint of a device as a QR code
	tags.cncf.io/container-device-interface v1.1.1 // devices by their CDI names
)

require (
	cloud.google.com/go v0.123.0 // indirect
	cloud.google.com/go/auth v0.20.0 // indirect
	cloud.google.com/go/auth/oauth2adapt v0.2.8 // indirect
	cloud.google.com/go/compute/metadata v0.9.0 // indirect
	cloud.google.com/go/iam v1.11.0 // indirect
	cloud.google.com/go/kms v1.31.0 // indirect
	cloud.google.com/go/longrunning v1.0.0 // indirect
	cyphar.com/go-pathrs v0.2.5 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/azidentity v1.13.1 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/internal v1.12.0 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys v1.5.0 // indirect
	github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/internal v1.2.0 // indirect
	github.com/AzureAD/microsoft-authentication-library-for-go v1.7.0 // indirect
	github.com/Microsoft/go-winio v0.6.3-0.20251027160822-ad3df93bed29 // indirect
	github.com/Microsoft/hcsshim v0.15.0-rc.4 // indirect
	github.com/VividCortex/ewma v1.2.0 // indirect
	github.com/acarl005/stripansi v0.0.0-20180116102854-5a71ef0e047d // indirect
	github.com/asaskevich/govalidator v0.0.0-20230301143203-a9d515a09cc2 // indirect
	github.com/aws/aws-sdk-go-v2 v1.41.9 // indirect
	github.com/aws/aws-sdk-go-v2/config v1.32.20 // indirect
	github.com/aws/aws-sdk-go-v2/credentials v1.19.19 // indirect
	github.com/aws/aws-sdk-go-v2/feature/ec2/imds v1.18.25 // indirect
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.4.25 // indirect
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.7.25 // indirect
	github.com/aws/aws-sdk-go-v2/internal/v4a v1.4.26 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding v1.13.10 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/presigned-url v1.13.25 // indirect
	github.com/aws/aws-sdk-go-v2/service/kms v1.52.0 // indirect
	github.com/aws/aws-sdk-go-v2/service/signin v1.1.1 // indirect
	github.com/aws/aws-sdk-go-v2/service/sso v1.30.19 // indirect
	github.com/aws/aws-sdk-go-v2/service/ssooidc v1.36.2 // indirect
	github.com/aws/aws-sdk-go-v2/service/sts v1.42.3 // indirect
	github.com/aws/smithy-go v1.26.0 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/bitfield/gotestdox v0.2.2 // indirect
	github.com/blang/semver v3.5.1+incompatible // indirect
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/containerd/fifo v1.1.0 // indirect
	github.com/containerd/log/otel v0.1.0 // indirect
	github.com/containerd/plugin v1.1.0 // indirect
	github.com/containerd/ttrpc v1.2.9 // indirect
	github.com/coreos/go-oidc/v3 v3.17.0 // indirect
	github.com/cyberphone/json-canonicalization v0.0.0-20241213102144-19d51d7fe467 // indirect
	github.com/digitorus/pkcs7 v0.0.0-20230818184609-3a137a874352 // indirect
	github.com/digitorus/timestamp v0.0.0-20231217203849-220c5c2851b7 // indirect
	github.com/docker/cli v29.7.2+incompatible // indirect
	github.com/docker/docker-credential-helpers v0.9.5 // indirect
	github.com/docker/go-connections v0.7.0 // indirect
	github.com/docker/go-events v0.1.0 // indirect
	github.com/docker/go-metrics v0.1.0 // indirect
	github.com/fatih/color v1.18.0 // indirect
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-openapi/analysis v0.25.5 // indirect
	github.com/go-openapi/errors v0.22.8 // indirect
	github.com/go-openapi/jsonpointer v1.0.0 // indirect
	github.com/go-openapi/jsonreference v1.0.0 // indirect
	github.com/go-openapi/loads v0.25.0 // indirect
	github.com/go-openapi/runtime v0.33.0 // indirect
	github.com/go-openapi/runtime/server-middleware v0.30.0 // indirect
	github.com/go-openapi/spec v0.22.9 // indirect
	github.com/go-openapi/strfmt v0.27.0 // indirect
	github.com/go-openapi/swag v0.28.0 // indirect
	github.com/go-openapi/swag/cmdutils v0.28.0 // indirect
	github.com/go-openapi/swag/conv v0.28.0 // indirect
	github.com/go-openapi/swag/fileutils v0.28.0 // indirect
	github.com/go-openapi/swag/jsonutils v0.28.0 // indirect
	github.com/go-openapi/swag/loading v0.28.0 // indirect
	github.com/go-openapi/swag/mangling v0.28.0 // indirect
	github.com/go-openapi/swag/netutils v0.28.0 // indirect
	github.com/go-openapi/swag/pools v0.28.0 // indirect
	github.com/go-openapi/swag/stringutils v0.28.0 // indirect
	github.com/go-openapi/swag/typeutils v0.28.0 // indirect
	github.com/go-openapi/swag/yamlutils v0.28.0 // indirect
	github.com/go-openapi/validate v0.26.1 // indirect
	github.com/go-viper/mapstructure/v2 v2.5.0 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	github.com/google/s2a-go v0.1.9 // indirect
	github.com/googleapis/enterprise-certificate-proxy v0.3.16 // indirect
	github.com/googleapis/gax-go/v2 v2.22.0 // indirect
	github.com/gorilla/handlers v1.5.2 // indirect
	github.com/gorilla/mux v1.8.1 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.30.0 // indirect
	github.com/hashicorp/errwrap v1.1.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/hashicorp/go-rootcerts v1.0.2 // indirect
	github.com/hashicorp/go-secure-stdlib/parseutil v0.2.0 // indirect
	github.com/hashicorp/go-secure-stdlib/strutil v0.1.2 // indirect
	github.com/hashicorp/go-sockaddr v1.0.7 // indirect
	github.com/hashicorp/golang-lru/arc/v2 v2.0.5 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	github.com/hashicorp/hcl v1.0.1-vault-7 // indirect
	github.com/in-toto/attestation v1.2.0 // indirect
	github.com/in-toto/in-toto-golang v0.11.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jedisct1/go-minisign v0.0.0-20230811132847-661be99b8267 // indirect
	github.com/jellydator/ttlcache/v3 v3.4.0 // indirect
	github.com/klauspost/compress v1.20.1 // indirect
	github.com/kylelemons/godebug v1.1.0 // indirect
	github.com/letsencrypt/boulder v0.20260309.0 // indirect
	github.com/mattn/go-colorable v0.1.14 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/mattn/go-runewidth v0.0.16 // indirect
	github.com/mattn/go-shellwords v1.0.13 // indirect
	github.com/mdlayher/netlink v1.7.3-0.20250113171957-fbb4dce95f42 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	github.com/mfridman/interpolate v0.0.2 // indirect
	github.com/mitchellh/go-homedir v1.1.0 // indirect
	github.com/mitchellh/mapstructure v1.5.1-0.20231216201459-8508981c8b6c // indirect
	github.com/moby/locker v1.0.1 // indirect
	github.com/moby/sys/userns v0.2.1 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/natefinch/atomic v1.0.1 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/oklog/ulid/v2 v2.1.1 // indirect
	github.com/onsi/ginkgo/v2 v2.25.1 // indirect
	github.com/onsi/gomega v1.38.1 // indirect
	github.com/pkg/browser v0.0.0-20240102092130-5ac0b6a4141c // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/otlptranslator v1.0.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/redis/go-redis/extra/rediscmd/v9 v9.5.3 // indirect
	github.com/redis/go-redis/extra/redisotel/v9 v9.5.3 // indirect
	github.com/redis/go-redis/v9 v9.20.1 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/ryanuber/go-glob v1.0.0 // indirect
	github.com/sassoftware/relic v7.2.1+incompatible // indirect
	github.com/sethvargo/go-retry v0.5.0 // indirect
	github.com/shibumi/go-pathspec v1.3.0 // indirect
	github.com/sigstore/rekor-tiles/v2 v2.3.0 // indirect
	github.com/sigstore/timestamp-authority/v2 v2.1.3 // indirect
	github.com/spiffe/go-spiffe/v2 v2.7.0 // X.509-SVIDs and trust bundles of mutual TLS
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/thales-e-security/pool v0.0.2 // indirect
	github.com/theupdateframework/go-tuf v0.7.0 // indirect
	github.com/theupdateframework/go-tuf/v2 v2.4.2 // indirect
	github.com/titanous/rocacheck v0.0.0-20171023193734-afe73141d399 // indirect
	github.com/transparency-dev/formats v0.1.1 // indirect
	github.com/transparency-dev/merkle v0.0.2 // indirect
	github.com/xhit/go-str2duration/v2 v2.1.0 // indirect
	github.com/youmark/pkcs8 v0.0.0-20240726163527-a2c0da244d78 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/contrib/bridges/prometheus v0.67.0 // indirect
	go.opentelemetry.io/contrib/exporters/autoexport v0.67.0 // indirect
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.71.0 // indirect
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.71.0 // indirect
	go.opentelemetry.io/otel v1.46.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc v0.21.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp v0.21.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc v1.42.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp v1.43.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.46.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc v1.46.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp v1.46.0 // indirect
	go.opentelemetry.io/otel/exporters/prometheus v0.66.0 // indirect
	go.opentelemetry.io/otel/exporters/stdout/stdoutlog v0.21.0 // indirect
	go.opentelemetry.io/otel/exporters/stdout/stdoutmetric v1.42.0 // indirect
	go.opentelemetry.io/otel/exporters/stdout/stdouttrace v1.45.0 // indirect
	go.opentelemetry.io/otel/log v0.21.0 // indirect
	go.opentelemetry.io/otel/metric v1.46.0 // indirect
	go.opentelemetry.io/otel/sdk v1.46.0 // indirect
	go.opentelemetry.io/otel/sdk/log v0.21.0 // indirect
	go.opentelemetry.io/otel/sdk/metric v1.46.0 // indirect
	go.opentelemetry.io/otel/trace v1.46.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/api v0.283.0 // indirect
	google.golang.org/genproto v0.0.0-20260319201613-d00831a3d3e7 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260825221802-da73d73af1c5 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260825221802-da73d73af1c5 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
	modernc.org/libc v1.73.4 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
	tags.cncf.io/container-device-interface/specs-go v1.1.1 // indirect
)
