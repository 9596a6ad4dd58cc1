package compose

import (
	"strings"
)

// verdict is how a device treats a key.
type verdict string

const (
	handled  verdict = "handled"
	metadata verdict = "metadata" // accepted without effect
	packed   verdict = "packed"   // resolved when a component is packed; refused on a device
	refused  verdict = "refused"
)

// key is the decision on one or several keys of the Compose Specification that belong together. Paths are those of compose-go: "*" is a
// name that the author chooses, "[]" an element of a list. Refusing a key refuses everything below it.
type key struct {
	paths   []string // the first names the row
	verdict verdict
	how     string   // handled, metadata: what it does; refused, packed: why not
	hint    string   // refused, packed: what to do instead
	only    []string // values that are possible; nil: any that the translation takes
	notice  bool     // add how as a notice whenever the key is used
}

// section builds rows with a common prefix.
type section struct {
	prefix string
	rows   []key
}

func (s *section) add(v verdict, how, hint, paths string) *key {
	k := key{verdict: v, how: how, hint: hint}
	for p := range strings.FieldsSeq(paths) {
		k.paths = append(k.paths, s.prefix+p)
	}
	s.rows = append(s.rows, k)
	return &s.rows[len(s.rows)-1]
}

// does adds keys that are honoured.
func (s *section) does(how, paths string) *key { return s.add(handled, how, "", paths) }

// notes adds keys that are accepted without effect on a device.
func (s *section) notes(how, paths string) *key { return s.add(metadata, how, "", paths) }

// says is notes for keys that also cause a notice.
func (s *section) says(how, paths string) { s.add(metadata, how, "", paths).notice = true }

// bars adds keys that are refused.
func (s *section) bars(why, hint, paths string) { s.add(refused, why, hint, paths) }

// keys are the decisions on every key of the Compose Specification. The check of files, the golden table and the documentation use them.
func keys() []key {
	var out []key
	for _, f := range []func(*section){topKeys, containerKeys, confinementKeys, resourceKeys, connectionKeys, storageKeys, lifeKeys, deployKeys} {
		s := &section{}
		f(s)
		out = append(out, s.rows...)
	}
	return out
}

const noServer = "not possible on a device: a device runs containers only"

func topKeys(s *section) {
	s.notes("the deployment and its component name the project", "name")
	s.notes("ignored, as by docker compose", "version")
	s.add(packed, "one file describes the whole project on a device", "push the directory with longshore component push, which resolves it",
		"include include.[].path include.[].project_directory include.[].env_file")
	s.does("at least one, at most 128; each is one or several containers", "services services.*")
	s.bars("not possible on a device: services run, jobs are not started", "write it as a service with restart: \"no\"", "jobs")
	s.bars(noServer, "", "models")

	s.does("made for the project; kept while a service is on it", "networks networks.*")
	s.prefix = "networks.*."
	s.does("bridge (the default), macvlan, ipvlan, none, host; on a bridge, what is sent to the broadcast address of the subnet reaches every container", "driver")
	s.does("bridge: com.docker.network.driver.mtu, com.docker.network.enable_ipv6, and the options that are always so on a device; macvlan and ipvlan: parent, macvlan_mode, ipvlan_mode, mtu", "driver_opts driver_opts.*")
	s.does("no access to other networks of the device or outside", "internal")
	s.does("false: IPv6 alone", "enable_ipv4")
	s.does("true: IPv6 in addition to IPv4; a subnet of IPv6 also enables it", "enable_ipv6")
	s.does("subnets, each with gateway, allocation range and reserved addresses",
		"ipam ipam.config ipam.config.[].subnet ipam.config.[].gateway ipam.config.[].ip_range ipam.config.[].aux_addresses ipam.config.[].aux_addresses.*")
	s.does("only \"default\": the device chooses addresses itself", "ipam.driver").only = []string{"default"}
	s.bars("address management on a device has no options", "", "ipam.options")
	s.does("a network that the site declares", "external external.name")
	s.does("with external: the network's name on the device; else no effect, for a network belongs to its project", "name")
	s.does("labels of the network", "labels labels.*")
	s.notes("a network belongs to its project", "attachable")

	s.prefix = ""
	s.does("directories of the device that stay when containers, updates and the application are removed", "volumes volumes.*")
	s.prefix = "volumes.*."
	s.does("only \"local\"", "driver").only = []string{"local"}
	s.does("type, o and device, as for mount(8)", "driver_opts driver_opts.*")
	s.does("a volume that must be on the device already", "external external.name")
	s.does("one volume for all projects that use this name", "name")
	s.does("labels of the volume", "labels labels.*")

	for _, kind := range []string{"configs", "secrets"} {
		s.prefix = ""
		s.does("files that the agent puts into containers, from memory", kind+" "+kind+".*")
		s.prefix = kind + ".*."
		s.does("a file of the archive", "file")
		s.does("a parameter of the deployment", "environment")
		if kind == "configs" {
			s.does("the text itself, variables filled in", "content")
		} else {
			s.bars("no secret store on a device", "give the value with environment: or the file with file:", "driver driver_opts")
		}
		s.bars("a device has no external configs or secrets", "give the value with environment: or the file with file:", "external external.name")
		s.bars("not possible on a device", "", "template_driver")
		s.notes("for display only", "name")
		s.notes("labels that reach no container", "labels labels.*")
	}
}

// containerKeys are the keys of a container's process.
func containerKeys(s *section) {
	s.prefix = "services.*."
	s.does("pinned by longshore.lock, which longshore component push writes, or by a sha256 digest in the reference", "image")
	s.does("must be what the device runs; the image is taken for it", "platform")
	s.does("text is split as a shell would; [] takes the image's away", "command entrypoint")
	s.does("a name without a value takes the deployment's parameter", "environment environment.*")
	s.does("files of the archive; a missing one is refused unless required: false; format raw takes values literally",
		"env_file env_file.[].path env_file.[].required env_file.[].format")
	s.does("an absolute path", "working_dir")
	s.does("name or number, with or without a group", "user")
	s.does("names or numbers", "group_add")
	s.does("mode bits that new files lack, octal", "umask")
	s.does("default: the service's name, with the replica's number if there are several; on its networks also a name of the service, unless a service or an alias there has it", "hostname")
	s.does("the domain part of the host name", "domainname")
	s.does("not dev.longshore.… and containerd.io/…, which are the agent's and containerd's own", "labels labels.*")
	s.does("files of the archive", "label_file")
	s.does("OCI annotations of the container", "annotations annotations.*")
	s.does("an init process that reaps children and forwards signals", "init")
	s.does("a terminal", "tty")
	s.does("keeps standard input open", "stdin_open")
	s.does("the name of an OCI runtime of the device", "runtime")
	s.does("an alias of the service on its networks: the names of containers are generated", "container_name")
	s.does("json-file, local (max-size, max-file) and none; the device keeps the log either way", "logging logging.driver logging.options logging.options.*")
	s.notes("images are pinned by digest and loaded before anything starts", "pull_policy pull_refresh_after")
	s.notes("no client is attached to the output on a device", "attach")
	s.notes("for the developer's machine", "develop develop.watch "+
		"develop.watch.[].action develop.watch.[].exec develop.watch.[].exec.command develop.watch.[].exec.environment develop.watch.[].exec.environment.* "+
		"develop.watch.[].exec.privileged develop.watch.[].exec.user develop.watch.[].exec.working_dir develop.watch.[].ignore develop.watch.[].include "+
		"develop.watch.[].initial_sync develop.watch.[].path develop.watch.[].target")
	s.bars("not possible on a device: images are built before they are pushed", "build and push the image, then name it with \"image:\"", "build")
	s.add(packed, "one file describes the whole project on a device", "push the directory with longshore component push, which resolves it",
		"extends extends.service extends.file")
	s.bars(noServer, "", "models provider")
	s.bars("Windows only", "", "credential_spec isolation cpu_count cpu_percent")
	s.bars("not possible on a device: it has no snapshotter with quotas", "put what grows on a tmpfs with a size", "storage_opt")
	s.bars("there is no Docker API on a device", "", "use_api_socket")
}

// confinementKeys are the keys of a container's isolation.
func confinementKeys(s *section) {
	s.prefix = "services.*."
	s.does("only with the device's permission", "privileged")
	s.does("with or without CAP_; ALL; strong ones with the device's permission", "cap_add cap_drop")
	s.does("no-new-privileges, seccomp (a file of the archive), apparmor, label; unconfined and systempaths=unconfined with the device's permission", "security_opt")
	s.does("the root file system cannot be written", "read_only")
	s.does("service:NAME, container:NAME of a container_name of the file; host with the device's permission", "pid")
	s.does("private, shareable, host, none, service:NAME, container:NAME of a container_name of the file", "ipc")
	s.does("host", "uts")
	s.does("host (as without it), private: its root is an unprivileged user on the device", "userns_mode")
	s.does("host, private", "cgroup")
	s.does("path[:path[:rwm]], or the name of a CDI device: vendor.com/class=name", "devices devices.[].source devices.[].target devices.[].permissions")
	s.does("as \"c 189:* rmw\": devices that come later", "device_cgroup_rules")
	s.does("all, or a list; CDI names with driver: cdi",
		"gpus gpus.[].driver gpus.[].count gpus.[].device_ids gpus.[].capabilities gpus.[].options gpus.[].options.*")
	s.does("number, or soft and hard", "ulimits ulimits.* ulimits.*.soft ulimits.*.hard")
	s.does("kernel parameters that belong to the container", "sysctls sysctls.*")
}

func resourceKeys(s *section) {
	s.prefix = "services.*."
	s.does("hard limits; deploy.resources must have the same values if set", "cpus mem_limit pids_limit")
	s.does("the share of cores when they are short", "cpu_shares")
	s.does("cores, as \"0-2,4\"", "cpuset")
	s.does("in place of cpus", "cpu_quota cpu_period")
	s.does("microseconds or a duration", "cpu_rt_runtime cpu_rt_period")
	s.does("memory that is not reclaimed", "mem_reservation")
	s.does("memory and swap together, with mem_limit; -1: no limit; without it no swap", "memswap_limit")
	s.does("0 to 100", "mem_swappiness")
	s.does("-1000 to 1000", "oom_score_adj")
	s.does("with cgroup v1 only", "oom_kill_disable")
	s.does("size of /dev/shm", "shm_size")
	s.does("a path below the device's own", "cgroup_parent")
	s.does("weights and limits of block devices", "blkio_config blkio_config.weight "+
		"blkio_config.weight_device blkio_config.weight_device.[].path blkio_config.weight_device.[].weight "+
		"blkio_config.device_read_bps blkio_config.device_read_bps.[].path blkio_config.device_read_bps.[].rate "+
		"blkio_config.device_read_iops blkio_config.device_read_iops.[].path blkio_config.device_read_iops.[].rate "+
		"blkio_config.device_write_bps blkio_config.device_write_bps.[].path blkio_config.device_write_bps.[].rate "+
		"blkio_config.device_write_iops blkio_config.device_write_iops.[].path blkio_config.device_write_iops.[].rate")
}

// connectionKeys are about networks and names.
func connectionKeys(s *section) {
	s.prefix = "services.*."
	s.does("short and long, ranges, tcp, udp, sctp, IPv4 and IPv6; the host port is always given, a device chooses none; of a range for one port, as in 8300-8302:8080, replica 1 has the first, replica 2 the second; on a network with IPv6, a connection to [::1] is refused at once, for the kernel forwards nothing from there: use 127.0.0.1",
		"ports ports.[].target ports.[].published ports.[].protocol ports.[].host_ip")
	s.does("host or ingress: one device has one way to publish a port", "ports.[].mode").only = []string{"host", "ingress"}
	s.notes("for display only", "ports.[].name ports.[].app_protocol")
	s.does("for display only", "expose")
	s.does("without any, the network \"default\"", "networks networks.*")
	s.does("further names of the service", "networks.*.aliases")
	s.does("a fixed address; the network needs a subnet that holds it", "networks.*.ipv4_address networks.*.ipv6_address")
	s.does("of the interface in the container", "networks.*.mac_address networks.*.interface_name")
	s.does("order of the interfaces, highest first; else as written", "networks.*.priority")
	s.does("the highest has the default route; else the first", "networks.*.gw_priority")
	s.does("com.docker.network.endpoint.ifname", "networks.*.driver_opts networks.*.driver_opts.*")
	s.does("only true: the service's name always resolves", "networks.*.use_service_name_alias").only = []string{"true"}
	s.bars("not possible on a device", "give a fixed address with ipv4_address", "networks.*.link_local_ips")
	s.does("of the first network", "mac_address")
	s.does("host, none, bridge (the network \"default\"), service:NAME, container:NAME of a container_name of the file", "network_mode")
	s.does("name and address, or host-gateway for the device", "extra_hosts extra_hosts.*")
	s.does("the content of /etc/resolv.conf; default: the device's own. A container may write to it, as to /etc/hosts and /etc/hostname, unless it is read_only; the next start restores the files", "dns dns_search dns_opt")
	s.does("the service starts first; its alias resolves on the networks that both share", "links")
	s.bars("services of other applications have no fixed name on a device", "publish its port and name the device: extra_hosts: [\"name:host-gateway\"]", "external_links")
}

func storageKeys(s *section) {
	s.prefix = "services.*."
	s.does("named, without a name (kept over updates, gone with the application), bind with an absolute path, or with one of the project, which is packed and read-only, tmpfs, image; some places of a device with its permission",
		"volumes volumes.[].type volumes.[].source volumes.[].target volumes.[].read_only")
	s.does("false: the directory must be there", "volumes.[].bind volumes.[].bind.create_host_path")
	s.does("private, rprivate, shared, rshared, slave, rslave", "volumes.[].bind.propagation")
	s.does("enabled and writable (as without it: what is mounted below is writable there), disabled, readonly", "volumes.[].bind.recursive")
	s.says("files are not relabelled: a device's own policy labels them", "volumes.[].bind.selinux")
	s.does("true: a new volume stays empty; else it gets the image's files", "volumes.[].volume volumes.[].volume.nocopy")
	s.does("a directory of the volume or image", "volumes.[].volume.subpath volumes.[].image volumes.[].image.subpath")
	s.notes("a volume has the labels of the section \"volumes\"", "volumes.[].volume.labels volumes.[].volume.labels.*")
	s.does("size in bytes or with a unit, mode as octal", "volumes.[].tmpfs volumes.[].tmpfs.size volumes.[].tmpfs.mode")
	s.notes("no effect on Linux", "volumes.[].consistency")
	s.does("path[:size=…,mode=…,…]", "tmpfs")
	s.does("the mounts of other services, :ro; a volume without a name becomes one of the project", "volumes_from")
	for _, kind := range []string{"configs", "secrets"} {
		s.does("short and long; in memory, by default /NAME and /run/secrets/NAME, mode 0444",
			strings.ReplaceAll("K K.[].source K.[].target K.[].uid K.[].gid K.[].mode", "K", kind))
	}
}

// lifeKeys are the keys of start, stop and health.
func lifeKeys(s *section) {
	s.prefix = "services.*."
	s.does("checked at every start, also after a crash and a reboot", "depends_on depends_on.* depends_on.*.condition")
	s.does("false: the service also starts without the dependency", "depends_on.*.required")
	s.does("true: restarted when the dependency was restarted", "depends_on.*.restart")
	s.does("CMD, CMD-SHELL, NONE; x-longshore-probe; without a test the image's own", "healthcheck healthcheck.test healthcheck.disable")
	s.does("defaults: 30s, 30s, 3, 0 and the interval", "healthcheck.interval healthcheck.timeout healthcheck.retries healthcheck.start_period healthcheck.start_interval")
	s.does("no, always, on-failure[:attempts], unless-stopped", "restart")
	s.does("name or number; without it the image's, else SIGTERM", "stop_signal")
	s.does("at most ten minutes", "stop_grace_period")
	hook := "K K.[].command K.[].user K.[].privileged K.[].working_dir K.[].environment K.[].environment.*"
	s.does("in the container once it runs; when one fails the container is stopped", strings.ReplaceAll(hook, "K", "post_start"))
	s.does("in the container before it is stopped", strings.ReplaceAll(hook, "K", "pre_stop"))
	s.does("containers that run to their end before the service's; each has what the service has unless it says otherwise; it may take 24 hours, or until the component's `timeout` fails an update; it begins anew when the agent is started again meanwhile", "pre_start")
	s.does("true: for every replica; else once", "pre_start.[].per_replica")
	s.bars("it shares the network of its service", "", "pre_start.[].networks pre_start.[].network_mode pre_start.[].mac_address")
	s.does("the deployment's parameter COMPOSE_PROFILES names the active ones; a service without an active profile does not exist", "profiles")
}

func deployKeys(s *section) {
	s.prefix = "services.*."
	s.does("0: the service does not exist", "scale deploy deploy.replicas")
	s.does("replicated; global is one container", "deploy.mode").only = []string{"replicated", "global"}
	limits := "deploy.resources deploy.resources.limits deploy.resources.limits.cpus deploy.resources.limits.memory deploy.resources.limits.pids"
	s.does("hard limits; cpus, mem_limit and pids_limit must have the same values if set", limits)
	s.does("cpus: a share when cores are short; memory: not reclaimed",
		"deploy.resources.reservations deploy.resources.reservations.cpus deploy.resources.reservations.memory")
	s.does("as gpus", strings.ReplaceAll("K K.[].driver K.[].count K.[].device_ids K.[].capabilities K.[].options K.[].options.*", "K", "deploy.resources.reservations.devices"))
	s.bars("a device has no generic resources", "ask for capabilities with deviceConstraints of the deployment", "deploy.resources.reservations.generic_resources")
	s.does("all four", "deploy.restart_policy deploy.restart_policy.condition deploy.restart_policy.delay deploy.restart_policy.max_attempts deploy.restart_policy.window")
	update := "deploy.K deploy.K.order deploy.K.parallelism deploy.K.delay deploy.K.monitor deploy.K.failure_action deploy.K.max_failure_ratio"
	s.does("start-first if the old and the new container can run at the same time", strings.ReplaceAll(update, "K", "update_config"))
	s.does("as update_config, for the rollback", strings.ReplaceAll(update, "K", "rollback_config"))
	s.does("vip: a service has one address, whatever its replicas; dnsrr is taken as that, with a notice", "deploy.endpoint_mode")
	s.says("no effect: the deployment already chose the device", "deploy.placement deploy.placement.constraints deploy.placement.preferences "+
		"deploy.placement.preferences.[].spread deploy.placement.max_replicas_per_node")
	s.notes("labels of Swarm's service, not of containers", "deploy.labels deploy.labels.*")
}
