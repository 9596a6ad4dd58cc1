package compose_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
)

// wild are Compose files as people write them by mistake, section by section. Each fault has its place and says what is
// wrong with it.
func TestWild(t *testing.T) {
	web := func(fields string) string { return "services:\n  web: {image: \"caddy:2\", " + fields + "}\n" }
	top := func(section string) string { return section + "\nservices:\n  web: {image: \"caddy:2\"}\n" }
	net := func(config string) string {
		return "networks: {n: " + config + "}\nservices: {web: {image: x, networks: [n]}}\n"
	}
	one := func(config string) string {
		return "networks: {n: {ipam: {config: [{subnet: 10.1.0.0/24}]}}}\nservices: {web: {image: x, networks: {n: " + config + "}}}\n"
	}
	s := func(key string) string { return "services.web." + key }
	cases := []struct{ file, path, message string }{
		// processes
		{web("environment: [\"=x\"]"), s("environment[0]"), "no name"},
		{web("env_file: [{path: a, format: json}]"), s("env_file[0]"), "no format of env files"},
		{web("env_file: [{required: true}]"), s("env_file[0]"), "is missing"},
		{web("label_file: gone.labels"), s("label_file"), "not in the archive"},
		{web("label_file: /etc/passwd"), s("label_file"), "not in the archive"},
		{web("environment: [\"A =x\"]"), s("environment[0]"), "ends with a space"},
		{web("environment: A=x"), s("environment"), "must be a list or a mapping"},
		{web("healthcheck: curl"), s("healthcheck"), "must be a mapping"},
		{web("deploy: {resources: {limits: 5}}"), s("deploy.resources.limits"), "must be a mapping"},
		{web("deploy: {resources: 5}"), s("deploy.resources"), "must be a mapping"},
		{web("deploy: {resources: {reservations: [cpus]}}"), s("deploy.resources.reservations"), "must be a mapping"},
		{web("cpus: 1e300"), s("cpus"), "no number of cores"},
		{web("stop_grace_period: -1s"), s("stop_grace_period"), "must not be negative"},
		{web("post_start: [x]"), s("post_start[0]"), "must be a mapping"},
		{web("pre_stop: [null]"), s("pre_stop[0]"), "must be a mapping"},
		{web("pre_start: [null]"), s("pre_start[0]"), "must be a mapping"},
		{web("group_add: {a: b}"), s("group_add"), "must be a list"},
		{web("umask: 999"), s("umask"), "no file mode"},
		{web("umask: \"0o888\""), s("umask"), "no file mode"},
		{web("domainname: \"a b\""), s("domainname"), "no name of a domain"},
		{web("init: maybe"), s("init"), "true or false"},
		{web("tty: 3"), s("tty"), "true or false"},
		{web("platform: windows/amd64"), s("platform"), "no platform"},
		{web("container_name: \"my web\""), s("container_name"), "no name"},
		{web("annotations: {a: [b]}"), s("annotations.a"), "must be text"},
		{web("logging: {driver: syslog}"), s("logging.driver"), "logging driver \"syslog\" is not possible"},
		{web("logging: journald"), s("logging"), "must be a mapping"},
		{web("logging: {options: {max-size: lots}}"), s("logging.options.max-size"), "no size"},
		{web("logging: {options: {max-file: 0}}"), s("logging.options.max-file"), "not within"},
		{web("logging: {options: {max-siez: 1m}}"), s("logging.options.max-siez"), "unknown option"},
		{web("read_only: maybe"), s("read_only"), "true or false"},
		{web("healthcheck: {test: x, retries: many}"), s("healthcheck.retries"), "\"many\" is no whole number"},
		{web("healthcheck: {disable: maybe}"), s("healthcheck.disable"), "true or false"},
		{web("deploy: {resources: {limits: {cpus: many}}}"), s("deploy.resources.limits.cpus"), "\"many\" is no number"},
		{web("pre_start: [{command: {run: x}}]"), s("pre_start[0].command"), "must be text or a list"},
		{web("expose: {a: 80}"), s("expose"), "must be a list"},
		// confinement
		{web("cap_add: [\"no such\"]"), s("cap_add[0]"), "no capability"},
		{web("cap_drop: all things"), s("cap_drop"), "no capability"},
		{web("cap_add: [NET_ADMINN]"), s("cap_add[0]"), "no capability"},
		{web("privileged: sure"), s("privileged"), "true or false"},
		{web("security_opt: [seccomp=gone.json]"), s("security_opt[0]"), "not in the archive"},
		{web("security_opt: [seccomp=bad.json]"), s("security_opt[0]"), "not JSON"},
		{web("security_opt: [\"no-new-privileges:yes\"]"), s("security_opt[0]"), "true or false"},
		{web("security_opt: [fast]"), s("security_opt[0]"), "no security option"},
		{web("security_opt: [credentialspec=file]"), s("security_opt[0]"), "no security option"},
		{web("pid: \"container:db\""), s("pid"), "no service of the file has container_name"},
		{web("pid: guest"), s("pid"), "none of host, service:NAME"},
		{web("ipc: \"service:db\""), s("ipc"), "not defined"},
		{web("ipc: \"service:web\""), s("ipc"), "with itself"},
		{web("uts: \"service:web\""), s("uts"), "cannot be another service's"},
		{web("userns_mode: keep-id"), s("userns_mode"), "none of private"},
		{web("cgroup: mine"), s("cgroup"), "none of host, private"},
		{web("devices: [ttyUSB0]"), s("devices[0]"), "no device"},
		{web("devices: [\"/dev/a:/dev/b:rwx\"]"), s("devices[0]"), "no permissions"},
		{web("devices: [\"/dev/a:/dev/b:r:w\"]"), s("devices[0]"), "no device"},
		{web("devices: [\"vendor.com/class=name:/dev/x\"]"), s("devices[0]"), ""},
		{web("devices: /dev/a"), s("devices"), "must be a list"},
		{web("devices: [{target: /dev/a}]"), s("devices[0]"), "no device"},
		{web("device_cgroup_rules: [\"c 189 rmw\"]"), s("device_cgroup_rules[0]"), "no rule for devices"},
		{web("device_cgroup_rules: [\"c 18446744073709551615:1 r\"]"), s("device_cgroup_rules[0]"), "no rule for devices"},
		{web("gpus: 2"), s("gpus"), "must be \"all\" or a list"},
		{web("gpus: [{count: 1, device_ids: [\"0\"]}]"), s("gpus[0].count"), "device_ids beside"},
		{web("gpus: [{count: many}]"), s("gpus[0].count"), "must be \"all\" or a number"},
		{web("gpus: [{driver: cdi}]"), s("gpus[0]"), "a CDI device needs a name"},
		{web("gpus: [{driver: cdi, device_ids: [\"0\"]}]"), s("gpus[0].device_ids"), "no CDI device"},
		{web("ulimits: {files: 3}"), s("ulimits.files"), "no limit of the kernel"},
		{web("ulimits: {nofile: {soft: 3}}"), s("ulimits.nofile"), "soft and hard"},
		{web("ulimits: {nofile: {soft: 3, hard: 2}}"), s("ulimits.nofile"), "soft is more than hard"},
		{web("ulimits: [nofile=3]"), s("ulimits"), "must be a mapping"},
		{web("sysctls: {vm.swappiness: 1}"), s("sysctls.vm.swappiness"), "belongs to the whole device"},
		{web("sysctls: [\"net\"]"), s("sysctls[0]"), "no kernel parameter"},
		{web("network_mode: host, sysctls: {net.ipv4.ip_forward: 1}"), s("sysctls.net.ipv4.ip_forward"), "on the device itself"},
		{web("ipc: host, sysctls: {kernel.msgmax: 1}"), s("sysctls.kernel.msgmax"), "on the device itself"},
		// resources
		{web("pids_limit: -2"), s("pids_limit"), "not within"},
		{web("pids_limit: 5, deploy: {resources: {limits: {pids: 6}}}"), s("deploy.resources.limits.pids"), "differs from pids_limit"},
		{web("cpuset: all"), s("cpuset"), "no set of cores"},
		{web("cpu_shares: -1"), s("cpu_shares"), "not within"},
		{web("cpu_quota: 10"), s("cpu_quota"), "less than the kernel takes"},
		{web("cpu_period: 1s30m"), s("cpu_period"), "not within"},
		{web("cpus: 1, cpu_quota: 5000"), s("cpu_quota"), "cpus is there beside it"},
		{web("cpu_rt_runtime: 2s, cpu_rt_period: 1s"), s("cpu_rt_runtime"), "more than cpu_rt_period"},
		{web("memswap_limit: 1g"), s("memswap_limit"), "no limit on memory"},
		{web("mem_limit: 2g, memswap_limit: 1g"), s("memswap_limit"), "less than the limit"},
		{web("mem_limit: 1g, mem_reservation: 2g"), "services.web", "must not be more than the limit"},
		{web("mem_reservation: 1g, deploy: {resources: {reservations: {memory: 2g}}}"), s("deploy.resources.reservations.memory"), "differs from"},
		{web("mem_swappiness: 101"), s("mem_swappiness"), "not within"},
		{web("oom_score_adj: 5000"), s("oom_score_adj"), "not within"},
		{web("shm_size: big"), s("shm_size"), "no size"},
		{web("cgroup_parent: a/../../b"), s("cgroup_parent"), "leave the tree"},
		{web("blkio_config: {weight: 5}"), s("blkio_config.weight"), "not within"},
		{web("blkio_config: {device_read_bps: [{rate: 1m}]}"), s("blkio_config.device_read_bps[0]"), "path must be"},
		{web("blkio_config: {device_read_bps: [{path: /dev/sda}]}"), s("blkio_config.device_read_bps[0]"), "rate is missing"},
		{web("deploy: {resources: {reservations: {cpus: many}}}"), s("deploy.resources.reservations.cpus"), "no number"},
		// networks of a service
		{web("networks: back"), s("networks"), "list or a mapping"},
		{web("network_mode: host, networks: [default]"), s("network_mode"), "networks beside it"},
		{web("network_mode: \"service:web\""), s("network_mode"), "with itself"},
		{web("network_mode: \"service:gone\""), s("network_mode"), "not defined"},
		{web("network_mode: \"container:x\""), s("network_mode"), "no service of the file has container_name"},
		{web("network_mode: slirp4netns"), s("network_mode"), "none of host"},
		{web("network_mode: none, mac_address: \"02:42:00:00:00:01\""), s("mac_address"), "no network of its own"},
		{web("network_mode: none, ports: [\"80:80\"]"), s("ports"), "no network of its own"},
		{web("ports: [\"10.0.0.1:80:80\", \"[::]:80:80\"]"), s("ports[1]"), "is taken by services.web.ports[0]"},
		{web("network_mode: host, ports: [\"80:81\"]"), s("ports"), "cannot become"},
		{web("mac_address: \"03:42:00:00:00:01\""), s("mac_address"), "no hardware address"},
		{web("ports: [\"80:80/dccp\"]"), s("ports[0]"), "protocol \"dccp\" is not possible"},
		{web("ports: [{target: 80, published: \"80\", protocol: dccp}]"), s("ports[0]"), "protocol \"dccp\" is not possible"},
		{one("{interface_name: lo}"), s("networks.n.interface_name"), "no name of an interface"},
		{one("{ipv4_address: fd00::1}"), s("networks.n.ipv4_address"), "no IPv4 address"},
		{one("{ipv6_address: 10.1.0.5}"), s("networks.n.ipv6_address"), "no IPv6 address"},
		{one("{ipv4_address: 10.2.0.5}"), s("networks.n.ipv4_address"), "no subnet that holds"},
		{one("{ipv4_address: 10.1.0.1}"), s("networks.n.ipv4_address"), "is the gateway"},
		{one("{ipv4_address: 10.1.0.0}"), s("networks.n.ipv4_address"), "is the network itself"},
		{one("{interface_name: \"a b\"}"), s("networks.n.interface_name"), "no name of an interface"},
		{one("{priority: first}"), s("networks.n.priority"), "no whole number"},
		{one("{use_service_name_alias: false}"), s("networks.n.use_service_name_alias"), "only true"},
		{one("{driver_opts: {com.docker.network.endpoint.sysctls: x}}"), s("networks.n.driver_opts.com.docker.network.endpoint.sysctls"), "not possible"},
		{one("{ipv4_address: 10.1.0.5}}}, b: {image: x, networks: {n: {ipv4_address: 10.1.0.5}"), "services.b.networks.n.ipv4_address", "is the address of service web"},
		{one("{ipv4_address: 10.1.0.5}}, deploy: {replicas: 2"), s("networks.n.ipv4_address"), "2 replicas cannot have one address"},
		{web("networks: {default: {ipv4_address: 10.1.0.5}}"), s("networks.default.ipv4_address"), "no subnet that holds"},
		{web("mac_address: \"02:42:00:00:00:01\", deploy: {replicas: 2}"), "services.web", "2 replicas cannot have the hardware address 02:42:00:00:00:01"},
		{web("extra_hosts: [plc]"), s("extra_hosts[0]"), "no address"},
		{web("extra_hosts: [\"plc=10.0.0\"]"), s("extra_hosts[0]"), "no address"},
		{web("extra_hosts: {plc: [x]}"), s("extra_hosts.plc[0]"), "no address"},
		{web("dns: resolver"), s("dns"), "no address of a name server"},
		{web("dns_search: [\"a b\"]"), s("dns_search[0]"), "no domain"},
		{web("dns_opt: [\"use vc\"]"), s("dns_opt[0]"), "no option of a resolver"},
		{web("links: [gone]"), s("links[0]"), "not defined"},
		{"services:\n  a: {image: x}\n  b: {image: x}\n  web: {image: x, links: [\"a:b\"]}\n", s("links[0]"), "service of its own"},
		{"networks: {n: }\nservices:\n  a: {image: x, networks: [n]}\n  web: {image: x, links: [\"a:c\"]}\n", s("links[0]"), "shares no network"},
		{web("external_links: [db]"), s("external_links"), "no fixed name"},
		// networks of the project
		{top("networks: [n]"), "networks", "must be a mapping"},
		{top("networks: {n: bridge}"), "networks.n", "must be a mapping"},
		{top("networks: {-n: }"), "networks.-n", "no name for a network"},
		{top("networks: {..: }"), "networks...", "no name for a network"},
		{top("networks: {" + strings.Repeat("n", 254) + ": }"), "networks." + strings.Repeat("n", 254), "no name for a network"},
		{net("{driver: overlay}"), "networks.n.driver", "not possible"},
		{net("{driver: macvlan}"), "networks.n", "needs a parent"},
		{net("{driver: macvlan, internal: true}"), "networks.n", "needs a parent"},
		{net("{driver: macvlan, driver_opts: {parent: \"a/b\"}}"), "networks.n.driver_opts.parent", "not possible"},
		{net("{driver: ipvlan, driver_opts: {parent: eth0, ipvlan_mode: l9}}"), "networks.n.driver_opts.ipvlan_mode", "not possible"},
		{net("{driver: macvlan, driver_opts: {parent: eth0, macvlan_mode: x}}"), "networks.n.driver_opts.macvlan_mode", "not possible"},
		{net("{driver_opts: {com.docker.network.bridge.name: br0}}"), "networks.n.driver_opts.com.docker.network.bridge.name", "not possible"},
		{net("{driver_opts: {com.docker.network.driver.mtu: 12}}"), "networks.n.driver_opts.com.docker.network.driver.mtu", "not within"},
		{net("{enable_ipv4: false}"), "networks.n.enable_ipv4", "without any addresses"},
		{net("{ipam: {driver: dhcp}}"), "networks.n.ipam.driver", "not possible"},
		{net("{ipam: {options: {a: b}}}"), "networks.n.ipam.options", "address management on a device has no options"},
		{net("{ipam: {config: {subnet: x}}}"), "networks.n.ipam.config", "must be a list"},
		{net("{ipam: {config: [{gateway: 10.0.0.1}]}}"), "networks.n.ipam.config[0]", "subnet is missing"},
		{net("{ipam: {config: [{subnet: 10.0.0.0}]}}"), "networks.n.ipam.config[0].subnet", "no subnet"},
		{net("{ipam: {config: [{subnet: 10.0.0.0/32}]}}"), "networks.n.ipam.config[0].subnet", "no room"},
		{net("{ipam: {config: [{subnet: 10.0.0.0/24, gateway: 10.0.1.1}]}}"), "networks.n.ipam.config[0].gateway", "no address within"},
		{net("{ipam: {config: [{subnet: 10.0.0.0/24, gateway: 10.0.0.0}]}}"), "networks.n.ipam.config[0].gateway", "is the network itself"},
		{net("{ipam: {config: [{subnet: 0.0.0.0/4}]}}"), "networks.n.ipam.config[0].subnet", "no subnet"},
		{net("{ipam: {config: [{subnet: 10.0.0.0/24, ip_range: 10.0.0.0/16}]}}"), "networks.n.ipam.config[0].ip_range", "no range within"},
		{net("{ipam: {config: [{subnet: 10.0.0.0/24}, {subnet: 10.0.0.0/16}]}}"), "networks.n.ipam.config[1]", "overlaps"},
		{net("{external: true, driver: bridge}"), "networks.n.driver", "the site configures an external"},
		{net("{external: sometimes}"), "networks.n.external", "true or false"},
		// storage
		{web("volumes: [{type: npipe, source: a, target: /a}]"), s("volumes[0].type"), "npipe"},
		{web("volumes: [{type: bind, source: /a, target: /a, volume: {nocopy: true}}]"), s("volumes[0].volume"), "another type"},
		{web("volumes: [{type: bind, source: /a, target: /a, bind: {recursive: readonly}}]"), s("volumes[0].bind.recursive"), "not read-only"},
		{web("volumes: [{type: bind, source: /a, target: /a, bind: {propagation: all}}]"), s("volumes[0].bind.propagation"), "none of"},
		{web("volumes: [{type: image, target: /a}]"), s("volumes[0]"), "no image"},
		{web("volumes: [{type: tmpfs, target: /a, tmpfs: {mode: \"9\"}}]"), s("volumes[0].tmpfs.mode"), "no file mode"},
		{web("volumes: [{type: tmpfs, target: /a, tmpfs: {size: much}}]"), s("volumes[0].tmpfs.size"), "no size"},
		{web("tmpfs: [\"/a:huge=always\"]"), s("tmpfs[0]"), "not possible"},
		{"volumes: {d: }\n" + web("volumes: [{type: volume, source: d, target: /d, volume: {subpath: ../x}}]"), s("volumes[0].volume.subpath"), "no path within"},
		{web("volumes_from: [gone]"), s("volumes_from[0]"), "not defined"},
		{web("volumes_from: [\"container:x\"]"), s("volumes_from[0]"), "no service of the file has container_name"},
		{"services:\n  a: {image: x, volumes_from: [web]}\n  web: {image: x, volumes_from: [a]}\n", "services.a", "wait for each other"},
		{top("volumes: {d: {driver: nfs}}"), "volumes.d.driver", "not possible"},
		{top("volumes: {d: {driver_opts: {type: nfs}}}"), "volumes.d.driver_opts", "device is missing"},
		{top("volumes: {d: {driver_opts: {device: /x, o: bind, fast: 1}}}"), "volumes.d.driver_opts.fast", "not possible"},
		{top("volumes: {d: {driver_opts: {device: x, o: bind}}}"), "volumes.d.driver_opts.device", "no absolute path"},
		{top("volumes: {d: {external: true, driver_opts: {device: x}}}"), "volumes.d.driver_opts", "the site configures an external"},
		{top("volumes: {d: {name: \"a/b\"}}"), "volumes.d.name", "no name of a volume"},
		// configs and secrets
		{web("configs: [gone]"), s("configs[0]"), "config \"gone\" is not defined"},
		{web("secrets: [{target: x}]"), s("secrets[0]"), "source is missing"},
		{web("secrets: token"), s("secrets"), "must be a list"},
		{"configs: {c: }\n" + web("configs: [c]"), "configs.c", "one of file, environment and content"},
		{"configs: {c: {file: a, content: b}}\n" + web("configs: [c]"), "configs.c.content", "beside it"},
		{"configs: {c: {file: gone}}\n" + web("configs: [c]"), "configs.c.file", "not in the archive"},
		{"configs: {c: {external: true}}\n" + web("configs: [c]"), "configs.c.external", "has no external configs or secrets"},
		{"secrets: {c: {environment: GONE}}\n" + web("secrets: [c]"), "secrets.c.environment", "GONE has no value"},
		{"secrets: {c: {content: x}}\n" + web("secrets: [c]"), "secrets.c.content", "unknown key"},
		{"configs: {c: {content: x}}\n" + web("configs: [{source: c, mode: 0o99}]"), s("configs[0].mode"), "no file mode"},
		{"configs: {c: {content: x}}\n" + web("configs: [{source: c, uid: root}]"), s("configs[0].uid"), "no whole number"},
		{"configs: {c: {content: x}}\n" + web("configs: [c, c]"), "services.web", "two files or mounts on \"/c\""},
		{"configs: {c: {content: x}}\n" + web("tmpfs: /c, configs: [c]"), "services.web", "two files or mounts on \"/c\""},
		{"configs: {c: {content: x}}\n" + web("configs: [{source: c, target: /}]"), s("configs[0].target"), "no path of a file"},
		// life
		{web("depends_on: db"), s("depends_on"), "list or a mapping"},
		{web("depends_on: {web: {condition: service_ready}}"), s("depends_on.web.condition"), "none of"},
		{"services:\n  a: {image: x}\n  web: {image: x, depends_on: {a: {required: perhaps}}}\n", s("depends_on.a.required"), "true or false"},
		{web("healthcheck: {start_interval: -1s}"), s("healthcheck.start_interval"), "negative"},
		{web("post_start: [{command: []}]"), s("post_start[0]"), "command is missing"},
		{web("post_start: {command: x}"), s("post_start"), ""},
		{web("pre_stop: [{command: x, working_dir: y}]"), s("pre_stop[0].working_dir"), "not an absolute path"},
		{web("pre_start: [{command: x, networks: [n]}]"), s("pre_start[0].networks"), "shares the network"},
		{web("pre_start: [{command: x, ports: [\"80:80\"]}]"), s("pre_start[0].ports"), "unknown key"},
		{web("pre_start: [{command: x, per_replica: 2}]"), s("pre_start[0].per_replica"), "true or false"},
		{web("pre_start: x"), s("pre_start"), "must be a list"},
		{web("pre_start: [{image: \"A b\"}]"), s("pre_start[0].image"), "A b"},
		{web("profiles: {a: b}"), s("profiles"), "must be a list"},
		// deploy
		{web("deploy: x"), s("deploy"), ""},
		{web("deploy: {replicas: -1}"), s("deploy.replicas"), "not within"},
		{web("deploy: {replicas: 1000}"), s("deploy.replicas"), "not within"},
		{web("scale: 2, deploy: {replicas: 3}"), s("scale"), "differs from deploy.replicas"},
		{web("deploy: {mode: replicated-job}"), s("deploy.mode"), "not possible"},
		{web("deploy: {endpoint_mode: any}"), s("deploy.endpoint_mode"), "none of vip, dnsrr"},
		{web("deploy: {restart_policy: {condition: always}}"), s("deploy.restart_policy.condition"), "none of none, on-failure, any"},
		{web("restart: always, deploy: {restart_policy: {condition: on-failure}}"), s("deploy.restart_policy"), "it differs from restart"},
		{web("deploy: {restart_policy: {delay: soon}}"), s("deploy.restart_policy.delay"), "no duration"},
		{web("deploy: {update_config: {order: both}}"), s("deploy.update_config.order"), "none of"},
		{web("deploy: {update_config: {parallelism: -1}}"), s("deploy.update_config.parallelism"), "not within"},
		{web("deploy: {update_config: {max_failure_ratio: 7}}"), s("deploy.update_config.max_failure_ratio"), "no share"},
		{web("deploy: {rollback_config: {failure_action: rollback}}"), s("deploy.rollback_config.failure_action"), "is not rolled back"},
	}
	files := fstest.MapFS{"bad.json": {Data: []byte("no")}, "a": {Data: []byte("A=1")}}
	for i, c := range cases {
		t.Run(fmt.Sprintf("%d %s", i, c.path), func(t *testing.T) {
			a := &artifacts.Archive{Root: "line", FS: files, Compose: []byte(c.file)}
			_, err := compose.Load(t.Context(), a, compose.Options{AllowUnpinned: true, Environment: map[string]string{"COMPOSE_PROFILES": "*"}})
			wantFault(t, err, c.path, c.message)
		})
	}
}

// What configs and secrets say is nobody's business but the container's.
func TestFaultsTellNoSecrets(t *testing.T) {
	const hunter = "hunter2"
	files := fstest.MapFS{"s": {Data: []byte(hunter + "\x00")}, "e.env": {Data: []byte("A='" + hunter)}, "big": {Data: []byte(strings.Repeat(hunter, 1<<20))}, "p.json": {Data: []byte(hunter)}}
	env := map[string]string{"TOKEN": hunter, "BIG": strings.Repeat(hunter, 1<<18)}
	for _, file := range []string{
		"services: {a: {image: x, secrets: [s], env_file: e.env, prots: 1}}\nsecrets: {s: {file: s}}",
		"services: {a: {image: x, secrets: [s, s, t, b], nope: 1}}\nsecrets: {s: {environment: TOKEN}, t: {file: big}, b: {environment: BIG}}",
		"services: {a: {image: x, security_opt: [seccomp=p.json]}}",
		"services: {a: {image: x, environment: [\"A=${TOKEN}\", TOKEN, \"=${TOKEN}\"]}}",
		"services: {a: {image: x, label_file: [s, e.env]}}",
	} {
		a := &artifacts.Archive{Root: "line", FS: files, Compose: []byte(file)}
		_, err := compose.Load(t.Context(), a, compose.Options{AllowUnpinned: true, Environment: env})
		if err == nil || strings.Contains(err.Error(), hunter) {
			t.Errorf("Load: %.300v\nwant an error without the secret", err)
		}
	}
}

// Booleans as YAML 1.1 wrote them are taken, with a notice of ours: the library's warnings on standard error name no place.
func TestBooleansOfYAML11(t *testing.T) {
	a := &artifacts.Archive{Root: "line", FS: fstest.MapFS{}, Compose: []byte("services:\n  web: {image: x, read_only: Yes, init: on, privileged: False, tty: n}\n")}
	p, err := compose.Load(t.Context(), a, compose.Options{AllowUnpinned: true})
	if err != nil {
		t.Fatal(err)
	}
	if s := p.Services[0]; !s.ReadOnly || !s.Init || s.TTY {
		t.Errorf("read_only %v, init %v, tty %v", s.ReadOnly, s.Init, s.TTY)
	}
	var said []string
	for _, n := range p.Notices {
		said = append(said, n.Path+": "+n.Message)
	}
	if all := strings.Join(said, "\n"); !strings.Contains(all, `services.web.read_only: "Yes" is taken as true`) || strings.Contains(all, "privileged") {
		t.Errorf("notices:\n%s", all)
	}
}
