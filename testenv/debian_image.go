package testenv

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// debianSoftware says how an image is made of Debian packages: the program with the libraries that it links, nothing else.
type debianSoftware struct {
	packages []string
	program  string   // path in the packages
	data     []string // more files and folders of the packages to take
	files    []File   // our own
	config   v1.Config
}

const nginxConfig = `daemon off;
pid /tmp/nginx.pid;
error_log stderr;
worker_processes 1;
events {}
http {
	include /etc/nginx/mime.types;
	access_log off;
	client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi; uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
	server {
		listen 8080;
		root /usr/share/nginx/html;
	}
}
`

func debianSoftwares() map[string]debianSoftware {
	return map[string]debianSoftware{
		"nginx": {
			packages: []string{"nginx", "nginx-common"}, program: "usr/sbin/nginx", data: []string{"etc/nginx/mime.types"},
			files: []File{
				{Path: "etc/nginx/nginx.conf", Data: []byte(nginxConfig)},
				{Path: "usr/share/nginx/html/index.html", Data: []byte("<!doctype html><title>Longshore test</title><p>nginx\n")},
				{Path: "var/log/nginx/", Mode: 0o777},
				{Path: "var/lib/nginx/", Mode: 0o777},
			},
			config: v1.Config{Entrypoint: []string{"/usr/sbin/nginx"}, StopSignal: "SIGQUIT", ExposedPorts: map[string]struct{}{"8080/tcp": {}}},
		},
		"redis": {
			packages: []string{"redis-server", "redis-tools"}, program: "usr/bin/redis-server",
			data:  []string{"usr/bin/redis-cli"},
			files: []File{{Path: "data/", Mode: 0o777}},
			config: v1.Config{
				Entrypoint: []string{"/usr/bin/redis-server"}, Cmd: []string{"--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/data", "--appendonly", "yes"},
				ExposedPorts: map[string]struct{}{"6379/tcp": {}}, Volumes: map[string]struct{}{"/data": {}},
				Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/usr/bin/redis-cli", "ping"}},
			},
		},
		"busybox": {
			packages: []string{"busybox-static"}, program: "bin/busybox",
			files: []File{
				{Path: "bin/sh", Link: "busybox"},
				{Path: "bin/sleep", Link: "busybox"},
				{Path: "bin/cat", Link: "busybox"},
				{Path: "bin/wget", Link: "busybox"},
				{Path: "bin/httpd", Link: "busybox"},
				{Path: "bin/ls", Link: "busybox"},
			},
			config: v1.Config{Cmd: []string{"/bin/sh"}},
		},
	}
}

// debianImage makes an image of Debian packages, downloaded and unpacked below the cache; nothing is installed.
func debianImage(ctx context.Context, out io.Writer, name string) (v1.Image, error) {
	software := debianSoftwares()[name]
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(software.config)
	if err != nil {
		return nil, err
	}
	// Not %+v of everything: the configuration holds pointers.
	sum := sha256.Sum256(fmt.Append(config, software.packages, software.program, software.data, software.files))
	dir := filepath.Join(cache, "debian-"+name+"-"+hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return cachedImage(ctx, filepath.Join(dir, name), name, func() (v1.Image, error) {
		tree := filepath.Join(dir, "tree")
		defer os.RemoveAll(tree) // the image has what is needed of it
		if err := unpackDebian(ctx, out, tree, software.packages); err != nil {
			return nil, fmt.Errorf("image of %s: %w", name, err)
		}
		files := append(slices.Clone(accounts), software.files...)
		for _, p := range append([]string{software.program}, software.data...) {
			if files, err = appendLinked(files, tree, p); err != nil {
				return nil, fmt.Errorf("image of %s: %w", name, err)
			}
		}
		config := software.config
		config.Env = append(config.Env, "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
		config.WorkingDir = "/"
		return BuildImage(HostPlatform(), config, files)
	})
}

// unpackDebian downloads packages with the libraries that they depend on, and unpacks them in tree.
func unpackDebian(ctx context.Context, out io.Writer, tree string, packages []string) error {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("needs Debian's %s: %w", tool, err)
		}
	}
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return err
	}
	all, err := debianClosure(ctx, packages)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "testenv: downloading Debian packages into the cache, not installing them: %s\n", strings.Join(all, " "))
	if err := aptUpdated(ctx, tree, append([]string{"download", "-q"}, all...)...); err != nil {
		return err
	}
	return unpackArchives(ctx, tree)
}

// unpackArchives unpacks the packages in a folder there.
func unpackArchives(ctx context.Context, dir string) error {
	archives, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(archives) == 0 {
		return errors.Join(err, fmt.Errorf("there are no packages in %s", dir))
	}
	for _, a := range archives {
		if text, err := exec.CommandContext(ctx, "dpkg-deb", "-x", a, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", a, err, tail(text, 5))
		}
	}
	return nil
}

// debianClosure adds the libraries that packages depend on, at any depth. What programs and scripts they also want, an
// image of one program does not need.
func debianClosure(ctx context.Context, packages []string) ([]string, error) {
	all := slices.Clone(packages)
	for next := packages; len(next) > 0; {
		text, err := exec.CommandContext(ctx, "apt-cache", append([]string{"depends"}, next...)...).Output()
		if err != nil { // the lists of packages are not here yet
			if err := apt(ctx, "", "update", "-q"); err != nil {
				return nil, err
			}
			if text, err = exec.CommandContext(ctx, "apt-cache", append([]string{"depends"}, next...)...).Output(); err != nil {
				return nil, fmt.Errorf("apt-cache depends %s: %w", strings.Join(next, " "), err)
			}
		}
		next = nil
		for line := range strings.Lines(string(text)) {
			_, p, ok := strings.Cut(strings.TrimSpace(line), "Depends: ")
			library := strings.HasPrefix(p, "lib") || strings.HasPrefix(p, "zlib") || strings.HasPrefix(p, "lua-")
			if ok && library && !slices.Contains(all, p) {
				all, next = append(all, p), append(next, p)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}

// appendLinked adds a file of tree, the targets of its links, and, of a program, its interpreter and libraries.
func appendLinked(files []File, tree, path string) ([]File, error) {
	if slices.ContainsFunc(files, func(f File) bool { return f.Path == path }) {
		return files, nil
	}
	full := filepath.Join(tree, path)
	info, err := os.Lstat(full)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(full)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Path: path, Link: target})
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		return appendLinked(files, tree, strings.TrimPrefix(target, "/"))
	}
	files = append(files, File{Path: path, Mode: info.Mode().Perm(), From: full})
	program, err := elf.Open(full)
	if err != nil {
		return files, nil // data
	}
	defer program.Close()
	libraries, err := program.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	if s := program.Section(".interp"); s != nil {
		interpreter, err := s.Data()
		if err != nil {
			return nil, err
		}
		libraries = append(libraries, strings.Trim(string(interpreter), "\x00"))
	}
	for _, l := range libraries {
		at, err := findLibrary(tree, l)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if files, err = appendLinked(files, tree, at); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// findLibrary looks where Debian has its libraries, merged /usr or not.
func findLibrary(tree, name string) (string, error) {
	candidates := []string{strings.TrimPrefix(name, "/")}
	if !strings.HasPrefix(name, "/") {
		candidates = nil
		for _, pattern := range []string{"lib/*-linux-gnu*", "usr/lib/*-linux-gnu*", "lib", "usr/lib"} {
			dirs, err := filepath.Glob(filepath.Join(tree, pattern))
			if err != nil {
				return "", err
			}
			for _, dir := range dirs {
				rel, err := filepath.Rel(tree, dir)
				if err != nil {
					return "", err
				}
				candidates = append(candidates, filepath.Join(rel, name))
			}
		}
	}
	for _, c := range candidates {
		if _, err := os.Lstat(filepath.Join(tree, c)); err == nil {
			return c, nil
		}
	}
	return "", errors.New("library " + name + " is in none of the packages")
}
