package compose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/compose-spec/compose-go/v2/tree"
)

// shape says which keys of a value are honoured. The zero shape is a value that the translation looks at whole.
type shape struct {
	fields map[string]shape // a mapping with these keys only
	each   *shape           // a mapping with names of the author's choice
	list   *shape           // a list
	only   []string         // a scalar that may say nothing else
	why    string           // what to tell when it does
}

// supported is the part of the Compose Specification that a device honours.
func supported() shape {
	leaf := shape{}
	names := shape{each: &leaf, list: &leaf}
	return shape{fields: map[string]shape{
		"name":    leaf, // ignored: the deployment and its component name the project
		"version": leaf, // ignored, as by everybody
		"services": {each: &shape{fields: map[string]shape{
			"image": leaf, "command": leaf, "entrypoint": leaf, "working_dir": leaf, "user": leaf, "hostname": leaf,
			"environment": names, "labels": names, "expose": {list: &leaf},
			"env_file": {list: &shape{fields: map[string]shape{"path": leaf, "required": leaf}}},
			"ports": {list: &shape{fields: map[string]shape{
				"target": leaf, "published": leaf, "protocol": leaf, "host_ip": leaf,
				"mode": {only: []string{"host", "ingress"}, why: "one device has no other way to publish a port"},
			}}},
			"networks": {list: &leaf, each: &shape{fields: map[string]shape{"aliases": {list: &leaf}}}},
			"volumes": {list: &shape{fields: map[string]shape{
				"type": leaf, "source": leaf, "target": leaf, "read_only": leaf,
				"bind":   {fields: map[string]shape{"create_host_path": leaf}},
				"volume": {fields: map[string]shape{"nocopy": {only: []string{"false"}, why: "an empty volume takes the image's files"}}},
				"tmpfs":  {fields: map[string]shape{"size": leaf, "mode": leaf}},
			}}},
			"tmpfs": {list: &leaf},
			"depends_on": {list: &leaf, each: &shape{fields: map[string]shape{
				"condition": leaf,
				"required":  {only: []string{"true"}, why: "every dependency is in the same file and is started"},
				"restart":   {only: []string{"false"}, why: "services are not restarted for the sake of others"},
			}}},
			"healthcheck": {fields: map[string]shape{
				"test": leaf, "interval": leaf, "timeout": leaf, "retries": leaf, "start_period": leaf, "disable": leaf,
				extProbe: {fields: map[string]shape{"http": {fields: map[string]shape{"port": leaf, "path": leaf}}, "tcp": leaf}},
			}},
			"restart": leaf, "read_only": leaf, "cpus": leaf, "mem_limit": leaf, "stop_signal": leaf, "stop_grace_period": leaf,
			"deploy": {fields: map[string]shape{
				"replicas":  {only: []string{"1"}, why: "one container a service"},
				"resources": {fields: map[string]shape{"limits": {fields: map[string]shape{"cpus": leaf, "memory": leaf, "pids": leaf}}}},
			}},
			extOwnShim: leaf,
		}}},
		"networks": {each: &shape{fields: map[string]shape{
			"labels": names,
			"driver": {only: []string{"bridge"}, why: "a project's networks are bridges"},
		}}},
		"volumes": {each: &shape{fields: map[string]shape{
			"labels": names,
			"driver": {only: []string{"local"}, why: "volumes are directories on the device"},
		}}},
	}}
}

// Extensions of our own. All others mean nothing to us and are left alone.
const (
	extPrefix  = "x-longshore-"
	extProbe   = "x-longshore-probe"    // in healthcheck: {http: {port, path}} or {tcp: port}, asked without tools in the image
	extOwnShim = "x-longshore-own-shim" // in a service: true keeps it out of the project's shared shim
)

// refusal is what to say about a key that authors are likely to have used.
type refusal struct{ why, hint string }

func refusals() map[string]refusal {
	const later = "not supported on a device yet"
	files := refusal{later, "put the files into the image, or into a named volume"}
	return map[string]refusal{
		"include":                 {"one file describes the whole project on a device", "flatten the project before it is packed: docker compose config"},
		"configs":                 files,
		"secrets":                 files,
		"models":                  {"not possible on a device: a device runs containers only", ""},
		"services.*.build":        {"not possible on a device: images are built before they are pushed", "build and push the image, then name it with \"image:\""},
		"services.*.extends":      {"one file describes the whole project on a device", "flatten the project before it is packed: docker compose config"},
		"services.*.profiles":     {"every service of a deployment runs", "make a component of its own for what not every device runs"},
		"services.*.configs":      files,
		"services.*.secrets":      files,
		"services.*.privileged":   {later + ": it gives a container the whole device", ""},
		"services.*.network_mode": {later, "name the networks of the service with \"networks:\" and publish its ports with \"ports:\""},
		"services.*.container_name": {
			"containers are named for their content", "other services reach this one by the name of the service or by an alias of its network",
		},
		"services.*.scale":                         {"one container a service", ""},
		"services.*.pids_limit":                    {later, "set deploy.resources.limits.pids"},
		"services.*.platform":                      {"a device runs its own platform", "push an image for every platform under one name"},
		"services.*.pull_policy":                   {"images are pinned by digest and loaded before anything starts", ""},
		"services.*.provider":                      {"not possible on a device: a device runs containers only", ""},
		"services.*.develop":                       {"not possible on a device", ""},
		"services.*.healthcheck.start_interval":    {later, "a shorter interval has the same effect"},
		"services.*.deploy.restart_policy":         {later, "set \"restart:\""},
		"services.*.deploy.resources.reservations": {later, "capacity is asked for by deviceConstraints of the deployment"},
		"services.*.env_file.*.format":             {later, "quote what must be taken literally"},
		"services.*.label_file":                    {later, "write the labels into the file"},
		"networks.*.driver_opts":                   {later, ""},
		"networks.*.external":                      {later, "networks are made for each project"},
		"networks.*.internal":                      {later, ""},
		"volumes.*.driver_opts":                    {later, ""},
		"volumes.*.external":                       {later, "volumes are made for each project; a host directory is mounted with an absolute path"},
		"volumes.*.name":                           {"a volume belongs to its project", ""},
		"networks.*.name":                          {"a network belongs to its project", ""},
	}
}

// screen refuses every key that is not in s and takes it out of the tree, together with extensions that mean nothing.
// Values are looked at once variables are filled in: when d.filled.
func (d *document) screen(n *node, s shape, pattern string) {
	switch {
	case n.kind == listKind && s.list != nil:
		for _, item := range n.items {
			d.screen(item, *s.list, pattern+".*")
		}
	case n.kind == mapKind && s.fields != nil:
		d.screenFields(n, s, pattern)
	case n.kind == mapKind && s.each != nil:
		for _, k := range n.keys {
			d.screen(n.fields[k], *s.each, join(pattern, "*"))
		}
	case d.filled && n.kind == scalarKind && len(s.only) > 0 && n.value != nil && !slices.Contains(s.only, n.str()):
		d.fault(n, "", "%q is not possible here: %s", n.str(), s.why)
	}
}

func (d *document) screenFields(n *node, s shape, pattern string) {
	for _, k := range slices.Clone(n.keys) {
		child := n.fields[k]
		sub, ok := s.fields[k]
		switch {
		case ok:
			d.screen(child, sub, join(pattern, k))
			continue
		case strings.HasPrefix(k, "x-") && !strings.HasPrefix(k, extPrefix):
		default:
			d.refuse(child, k, s, join(pattern, k))
		}
		n.drop(k)
	}
}

func (d *document) refuse(n *node, key string, s shape, pattern string) {
	if r, ok := refusals()[pattern]; ok {
		d.fault(n, r.hint, "%s", r.why)
		return
	}
	if specified(pattern) {
		d.fault(n, "", "not supported on a device yet")
		return
	}
	if near := closest(key, s.fields); near != "" {
		d.fault(n, "", "unknown key, did you mean %q?", near)
		return
	}
	d.fault(n, "", "unknown key")
}

// specified tells whether the Compose Specification knows a key, at this place or as a list's element.
func specified(pattern string) bool {
	want := tree.Path(pattern)
	return slices.ContainsFunc(schema.AttributePaths(), func(p tree.Path) bool {
		return p == want || strings.ReplaceAll(string(p), "[]", "*") == pattern
	})
}

func join(pattern, key string) string {
	if pattern == "" {
		return key
	}
	return pattern + "." + key
}

// closest is the key that a typing error most likely meant, "" when none is near.
func closest(key string, among map[string]shape) string {
	best, dist := "", 3
	if len(key) < 5 {
		dist = 2
	}
	for k := range among {
		if d := distance(key, k); d < dist || d == dist && best != "" && k < best {
			best, dist = k, d
		}
	}
	return best
}

// distance counts the letters to change, add or take away (Levenshtein); two swapped neighbours count once. Keys in
// files are short; long ones are far.
func distance(a, b string) int {
	const tooLong = 40
	if len(a) > tooLong || len(b) > tooLong {
		return tooLong
	}
	for i := 0; i+1 < len(a); i++ {
		if a[:i]+a[i+1:i+2]+a[i:i+1]+a[i+2:] == b {
			return 1
		}
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], cost
		}
	}
	return row[len(b)]
}

func (d *document) fault(n *node, hint, format string, args ...any) {
	f := faultAt(n)
	f.Message, f.Hint = fmt.Sprintf(format, args...), hint
	d.faults = append(d.faults, f)
}
