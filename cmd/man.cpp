// trainctl man: manual pages as roff, written from the commands and the field table, so that they say what --help
// and explain say.
#include <memory>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "runtime/base/record.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/pages/codes.h"
#include "runtime/spec/pages/pages.h"

namespace trainctl::cmd {

namespace {

/// As roff takes text: no escapes, hyphens that can be searched for, no line that begins with a request.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c != '`')  // quotes of Markdown
      out += c;
  }
  return out;
}

/// "JOB [OPTIONS]"
std::string man_line(const CommandLine& command) {
  std::string line = ".B " + roff(command.full_name()) + "\n";
  bool has_flags = false;
  for (const OptionText& option : command.options()) {
    has_flags |= !option.is_positional;
    if (option.is_positional)
      line += option.is_required ? fmt::format(".I {}\n", roff(option.names))
                                 : fmt::format(".RI [ {} ]\n", roff(option.names));
  }
  if (!command.subcommands().empty()) line += ".I COMMAND\n";
  return line + (has_flags ? ".RI [ OPTIONS ]\n" : "");
}

std::string man_options(const CommandLine& command) {
  std::string out;
  for (const OptionText& option : command.options()) {
    if (option.names == "-h, --help") continue;
    const std::string value = option.value.empty() ? "" : " \\fI" + roff(option.value) + "\\fR";
    out += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(option.names), value, roff(option.text));
    if (!option.choices.empty() && option.text.find(option.choices.front()) == std::string::npos)
      out += fmt::format("({})\n", roff(fmt::format("{}", fmt::join(option.choices, ", "))));
  }
  return out;
}

void add_command(std::string& out, const CommandLine& command) {
  out += fmt::format(".SS {}\n{}.PP\n{}.\n{}", roff(command.full_name()), man_line(command),
                     roff(command.description()), man_options(command));
  for (const CommandLine& sub : command.subcommands()) add_command(out, sub);
}

std::string program_page(const CommandLine& app) {
  std::string out =
      fmt::format(".TH TRAINCTL 1 \"\" \"trainctl {}\" \"trainctl\"\n.SH NAME\ntrainctl \\- {}\n",
                  TRAINCTL_VERSION, roff("pretrain transformer language models"));
  out += ".SH SYNOPSIS\n" + man_line(app) + ".SH DESCRIPTION\n" + roff(app.description()) + "\n";
  out += ".PP\nA job is one JSON file; see\n.BR trainctl\\-job (5).\n.SH OPTIONS OF ALL COMMANDS\n" +
         man_options(app);
  out += ".SH COMMANDS\n";
  for (const CommandLine& command : app.subcommands()) add_command(out, command);
  out += fmt::format(".SH EXIT STATUS\n.nf\n{}.fi\n", roff(exit_codes()));
  return out +
         ".SH ENVIRONMENT\n.TP\n.B TRAINCTL_RUN_DIR\nfolder of the runs\n.TP\n.B TRAINCTL_SET__A__B\nvalue "
         "of the "
         "field a.b of a job, as \\-\\-set gives it\n.TP\n.B NO_COLOR\nno colours\n.SH SEE ALSO\n.BR "
         "trainctl\\-job "
         "(5),\n.BR mpirun (1)\n";
}

std::string job_page() {
  std::string out = fmt::format(
      ".TH TRAINCTL\\-JOB 5 \"\" \"trainctl {}\" \"trainctl\"\n.SH NAME\ntrainctl\\-job \\- "
      "job files of trainctl\n.SH DESCRIPTION\n",
      TRAINCTL_VERSION);
  out +=
      "A job is a JSON file. Comments (//) are allowed.\n.B trainctl init\nwrites one,\n.B trainctl "
      "validate\nchecks one, and\n"
      ".B trainctl explain\nexplains every field and every error.\n.SH FIELDS\n";
  for (const spec::Field* field : spec::listed_fields()) {
    const std::string unless_given = default_text(*field);
    const std::string fallback = field->required        ? "must be given"
                                 : unless_given.empty() ? "no default"
                                                        : "default: " + unless_given;
    out += fmt::format(".TP\n.B {}\n{}\n.br\n{}; {}\n", roff(field->path), roff(field->text),
                       roff(describe_type(*field)), roff(fallback));
  }
  out += ".SH ERRORS\n";
  for (const spec::CodePage& page : spec::code_pages())
    out += fmt::format(".TP\n.B {}\n{}\n", page.code, roff(page.title));
  return out + ".SH SEE ALSO\n.BR trainctl (1)\n";
}

}  // namespace

void add_man(CommandLine& app, Context& context) {
  auto page = std::make_shared<std::string>("trainctl");
  CommandLine command = app.add_subcommand("man", "print a manual page as roff: trainctl man | man -l -");
  command.add_option("PAGE", *page, "trainctl (the commands) or job (the fields of a job)")
      .one_of({"trainctl", "job"});
  when_chosen(command, context, [page, app, &context] {
    print_page(*page == "job" ? job_page() : program_page(app), context.json);
    return kExitDone;
  });
}

}  // namespace trainctl::cmd
