package composefile

import (
	"bytes"
	"io/fs"
	"maps"
	"regexp"
	"slices"

	"github.com/compose-spec/compose-go/v2/template"

	"github.com/longshore-dev/longshore/artifacts"
)

// ProfilesVariable is the parameter that names the active profiles, as Compose has it: "a,b", or "*" for all.
const ProfilesVariable = "COMPOSE_PROFILES"

// Unused lists the names that appear nowhere in an archive, neither in compose.yaml nor in a file beside it: a variable of such a name has
// no effect. known are the variables of compose.yaml, sorted, to suggest what was meant; none when the file is very long.
func Unused(archive *artifacts.Archive, names []string) (unused, known []string, err error) {
	texts := [][]byte{archive.Compose}
	if archive.FS != nil {
		err = fs.WalkDir(archive.FS, ".", func(name string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			data, err := fs.ReadFile(archive.FS, name)
			texts = append(texts, data)
			return err
		})
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if name == ProfilesVariable && bytes.Contains(archive.Compose, []byte("profiles")) {
			continue // Compose's own: it chooses services, and no value refers to it
		}
		word := regexp.MustCompile(`(^|[^A-Za-z0-9_])` + regexp.QuoteMeta(name) + `([^A-Za-z0-9_]|$)`)
		if !slices.ContainsFunc(texts, word.Match) {
			unused = append(unused, name)
		}
	}
	if len(archive.Compose) <= maxTemplates {
		known = slices.Sorted(maps.Keys(template.ExtractVariables(map[string]any{"": string(archive.Compose)}, template.DefaultPattern)))
	}
	return unused, known, nil
}
