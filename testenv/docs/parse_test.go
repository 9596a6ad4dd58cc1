package docs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Page is one Markdown file, read for its commands.
type Page struct {
	Name     string
	Needs    []string // words of the comment "<!-- needs: registry fleet -->"
	Commands []Command
}

// Command is one thing to type.
type Command struct {
	Line int    // in the page, from 1
	Text string // without prompt; continuation lines joined by line breaks
	Exit int    // what "# exit N" at its end promises; else 0
}

var (
	file  = regexp.MustCompile(`^<!-- file: ([\w./-]+) -->$`)
	needs = regexp.MustCompile(`^<!-- needs:([a-z ]*)-->$`)
	exits = regexp.MustCompile(`\s+# exit (\d+)$`)
)

const endOfFile = "END-OF-FILE"

// Parse reads a page. Commands stand in blocks fenced with ```console, after "$ " or, as root, "# "; a line that ends
// in a backslash goes on in the next one. Other lines of such a block are output, for people. The comment "<!-- file: NAME -->"
// makes a file of the next block, whatever its language.
func Parse(name, text string) (*Page, error) {
	p := &Page{Name: name}
	inside, open := false, false // in a console block; in a command that goes on
	made, writing := "", false   // of the file that the next block is; in that block
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if m := needs.FindStringSubmatch(trimmed); m != nil && !inside {
			p.Needs = append(p.Needs, strings.Fields(m[1])...)
			continue
		}
		if m := file.FindStringSubmatch(trimmed); m != nil && !inside && !writing {
			made = m[1]
			continue
		}
		if strings.HasPrefix(trimmed, "```") && (writing || made != "") {
			if writing = !writing; writing {
				p.Commands = append(p.Commands, Command{Line: i + 1, Text: "cat >" + made + " <<'" + endOfFile + "'"})
			} else {
				p.Commands[len(p.Commands)-1].Text += "\n" + endOfFile
				made = ""
			}
			continue
		}
		if writing {
			p.Commands[len(p.Commands)-1].Text += "\n" + line
			continue
		}
		if strings.HasPrefix(trimmed, "```") {
			if open {
				return nil, fmt.Errorf("%s:%d: the block ends inside a command", name, i+1)
			}
			inside = !inside && trimmed == "```console"
			continue
		}
		if !inside {
			continue
		}
		if open {
			last := &p.Commands[len(p.Commands)-1]
			last.Text += "\n" + line
			open = strings.HasSuffix(line, `\`)
			continue
		}
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			if command, ok = strings.CutPrefix(line, "# "); !ok {
				continue
			}
		}
		c := Command{Line: i + 1, Text: command}
		if m := exits.FindStringSubmatch(command); m != nil {
			c.Exit, _ = strconv.Atoi(m[1]) // digits by the pattern
		}
		p.Commands = append(p.Commands, c)
		open = strings.HasSuffix(command, `\`)
	}
	return p, nil
}

// Script is one bash program that types the page's commands into one shell and ends at the first that does not exit as
// promised. set must name the page's stand-ins for addresses: longest first is not needed, they do not overlap.
func (p *Page) Script(set map[string]string) string {
	var b strings.Builder
	for _, c := range p.Commands {
		text := c.Text
		for from, to := range set {
			text = strings.ReplaceAll(text, from, to)
		}
		fmt.Fprintf(&b, "printf '\\n%%s\\n' %s >&2\n", quote(fmt.Sprintf("--- %s:%d: %s", p.Name, c.Line, text)))
		fmt.Fprintf(&b, "%s\nrc=$?\nif [ $rc -ne %d ]; then echo %s\"$rc\" >&2; exit 99; fi\n",
			text, c.Exit, quote(fmt.Sprintf("%s:%d: exit code, want %d, got ", p.Name, c.Line, c.Exit)))
	}
	return b.String()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
